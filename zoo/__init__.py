"""Planted bugs, each with a correct twin, shared by tests and benchmarks. Not in the wheel."""
