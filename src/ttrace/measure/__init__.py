"""Arithmetic over pairs of tensors: kernels, sums, statistics. Nothing here knows a trace."""
