"""Watching a run for replicas that differ, without a reference.

Enters: a training run, on each rank. Leaves: `watch.json`. What ranks hold in common must agree bit
for bit: held.py lists it, exchange.py asks the other ranks by a process group of its own,
comparison.py knows who holds the same and says what differs, tracer.py when to look. Nothing is put
on modules or tensors, only on the optimizers.
"""
