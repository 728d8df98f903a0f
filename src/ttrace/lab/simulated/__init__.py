"""Simulated ranks: a function on many ranks of one process, each a thread, one at a time.

    turns         whose turn it is, and when nobody can go on
    state         what a process has one of, exchanged when another rank takes its turn
    reductions    sums of all ranks, in the order in which gloo adds them
    group         the process group of a rank
    world         all ranks of a function, from the first to the last

Every tensor is bit for bit what gloo processes would give: the same sums in the same order, the
same random numbers on every rank, one thread for each operator.
"""
