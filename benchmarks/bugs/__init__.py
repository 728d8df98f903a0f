"""The bugs of native PyTorch and of the demo, each beside its correct twin: docs/reference/bugs.md.

- __main__.py: all of them through TTrace, from the zoo
- table.py: the page

$ python -m benchmarks.bugs
"""
