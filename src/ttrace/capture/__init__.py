"""Stage 1 of 7: capture.

Enters: a training run, on each rank. Leaves: a trace of every tensor of its steps. It must not know
frameworks (it asks an adapter), other ranks (no collective is ever called) or what traces are for.
"""
