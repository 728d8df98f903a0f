"""Attacks on our own tool: mutated files, killed writers, faults of the tracer, by the thousand."""
