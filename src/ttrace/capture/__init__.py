"""Stage 1 of 8: capture.

Enters: a training run, on each rank. Leaves: a trace of every tensor of its steps. It must not know
frameworks (it asks an adapter), other ranks or what traces are for. No hook calls a collective; an
adapter may, on all ranks alike, where the framework would call the same one next. `replicas` does
not record a run but watches it, and asks other ranks by a process group of its own.
"""
