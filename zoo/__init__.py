"""Planted bugs with their twins, correct programs and made-up traces, for tests and benchmarks."""
