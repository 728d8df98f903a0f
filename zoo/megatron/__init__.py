"""Bugs planted in the real Megatron-Core, and what it takes to run it on CPUs."""
