"""Fuzzing: mutated traces are checked, mutated results are reported, and nothing may go wrong.

    python -m attacks.fuzz --traces 20000 --results 5000

A violation is a Python error, more than 20 seconds, more memory than 2 GiB, or a verdict
of equivalence though data or meaning was changed.
"""
