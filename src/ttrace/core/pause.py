"""A pause of Python's search for cycles, while very many values are made that all stay.

A trace of many ranks is millions of objects without a cycle among them. The collector would look
at all of them again and again: a third of the time of a check, and it finds nothing.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_collection() -> Iterator[None]:
    """Reference counts free what they always do; cycles wait until the end."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
