"""Garbage collection while a step is recorded: as seldom as the run can do without it.

Recording keeps tens of thousands of small objects until a step is over. Python takes them for a
reason to look through all objects of the process, again and again: half of what recording took.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

# Chosen: more objects than the records of a step of a large model are; cycles of the run's own are
# still collected after as many.
_OBJECTS = 200_000


@contextmanager
def fewer_collections() -> Iterator[None]:
    """While open, Python collects garbage after many more new objects than before, if it did."""
    before = gc.get_threshold()
    if not 0 < before[0] < _OBJECTS:  # never, or seldom enough
        yield
        return
    during = (_OBJECTS, *before[1:])
    gc.set_threshold(*during)
    try:
        yield
    finally:
        if gc.get_threshold() == during:  # else the run has its own ideas by now
            gc.set_threshold(*before)
