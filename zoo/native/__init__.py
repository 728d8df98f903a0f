"""Bugs in plain PyTorch training programs."""
