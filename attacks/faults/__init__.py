"""Faults of the tracer itself, raised one at a time in every function of it that a run reaches.

    python -m attacks.faults [--cases N] [--seed S] [--jobs N] [PROGRAM ...]

Each case is a training program in a process of its own, in which one function of ours raises, at
its first, its second or its last call. Training must end as it does without tracing: with the same
bits, the same exceptions, and nothing of ours left on its objects. The fault must be said once in
the log and in the trace, unless it cost the trace nothing.

    places.py     functions, found by what the interpreter runs, and how one of them is made to fail
    programs.py   the programs, in one process
    ranks.py      the programs that need a process group
    case.py       one run, and what it left
"""
