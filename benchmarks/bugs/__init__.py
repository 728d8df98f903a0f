"""Silent bugs of real frameworks, re-created on native PyTorch, each beside its correct twin.

- case.py: what a case is
- workload.py: the batch that all train on; every sample counts a different number of tokens
- collectives.py: collectives with a gradient, as hand-written parallel layers use them
- data_parallel.py, tensor_parallel.py, sequence_parallel.py, context_parallel.py, experts.py,
  dtensor.py: families, one training job each, which obeys the names of the bugs it is given
- catalogue.py: all cases, single bugs, pairs, and those of the demo
- flow.py: a case through TTrace: compare, then isolate, with and without the bug
- table.py: the page docs/reference/bugs.md

$ python -m benchmarks.bugs
"""
