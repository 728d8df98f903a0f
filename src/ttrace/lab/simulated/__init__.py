"""Simulated ranks: a function on many ranks of one process, each a thread, one at a time.

    turns         whose turn it is, and when nobody can go on
    exchanges     what a collective does, with sums in the order in which gloo adds them
    meetings      what ranks bring to a collective, and what they send each other
    group         the process group of a rank
    world         all ranks of a function, and what of the process each has for itself

Every tensor is bit for bit what gloo processes would give: the same sums in the same order, the
same random numbers on every rank, one thread for each operator. This package itself imports
nothing, since every worker catches what it raises.
"""


class SimulationFailed(Exception):
    """A rank raised, or none could go on; the message has all that is to be told."""
