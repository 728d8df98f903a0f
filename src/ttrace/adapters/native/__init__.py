"""Native PyTorch: DDP, FSDP2, DTensor and pipelining."""
