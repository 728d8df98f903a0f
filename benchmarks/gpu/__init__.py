"""What recording costs on a GPU: scripts that need torch, numpy, xxhash and safetensors only."""
