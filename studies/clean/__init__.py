"""Correct runs of many architectures, sizes, precisions and layouts: docs/reference/clean.md.

- design.py: the grid; first_contact.py: programs that once raised false alarms
- job.py: cases of one reference through TTrace; check.py: what is kept of each
- __main__.py: runs what is not yet in clean.json
- slopes.py, table.py, plots.py: the page; verify.py: are the programs themselves right, in fp64?

$ python -m studies.clean
"""
