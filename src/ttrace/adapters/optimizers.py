"""Which torch optimizers stand behind what a script calls its optimizer.

    AcceleratedOptimizer, LightningOptimizer    wrap one
    a container                                 lists several, and steps them all
    ZeroRedundancyOptimizer                     is one, with that of its own states inside

Enters: any object. Leaves: the optimizers whose steps can be watched, and those that hold states.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

from torch.optim import Optimizer

# Attribute names under which wrappers keep the wrapped one, or all of them.
_WRAPPED = ("optimizer", "_optimizer", "optimizers")


def optimizers_behind(given: Any) -> tuple[Optimizer, ...]:
    """Those that make the steps; empty where it is no optimizer and wraps none."""
    held = getattr(given, "__dict__", {})
    inner = chain.from_iterable(map(_as_sequence, (held.get(name) for name in _WRAPPED)))
    found = [each for each in inner if isinstance(each, Optimizer)]
    if found:
        return tuple(dict.fromkeys(chain.from_iterable(map(optimizers_behind, found))))
    return (given,) if isinstance(given, Optimizer) else ()


def with_inner(optimizer: Optimizer) -> Iterator[Optimizer]:
    """An optimizer that divides its states among ranks holds those of this rank in another."""
    yield optimizer
    yield from (each for each in vars(optimizer).values() if isinstance(each, Optimizer))


def _as_sequence(value: Any) -> Sequence[Any]:
    return value if isinstance(value, (list, tuple)) else (value,)
