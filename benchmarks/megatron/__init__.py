"""Megatron-Core on CPU: every layout and every planted bug with its twin, through the whole flow.

- cases.py: what is tried: layouts in two precisions, bugs
- entries.py: one case through TTrace; leaves what docs and resumed runs need, as JSON
- job.py: what each process does: one case after the other
- __main__.py: all cases, several at a time; benchmarks/megatron.json grows by each
- table.py: the tables of docs/reference/megatron.md, from that file

    $ export PYTHONPATH=src:examples/megatron_gpt
    $ python -m benchmarks.megatron [layouts | bugs | NAME ...] [--jobs N] [--again]
    $ python -m benchmarks.megatron.table
"""
