"""Where the sums of an operator are cut, and how their parts are added."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from typing import Any, Protocol

import torch
from torch import Tensor

Bounds = list[tuple[int, int]]  # from, to


class Divide(Protocol):
    """Says where."""

    def __call__(self, length: int, terms: int = 0) -> Bounds:
        """Parts of `length` places, of one sum of so many `terms`; a single part is not cut.

        Without `terms` every place is one.
        """


# The operator, where to cut, and the operator's arguments; None where there is nothing to split.
Rule = Callable[..., Any]


def total(parts: Iterable[Tensor]) -> Tensor:
    """One after the other, each rounded to their dtype."""
    return reduce(torch.add, parts)


def joined(
    parts: Sequence[Sequence[Tensor]], shape: Sequence[int], wanted: Sequence[bool]
) -> tuple[Tensor | None, ...]:
    """Gradients of an input that was cut along dim 0, and of parameters, which are sums."""
    of_input = torch.cat([part[0] for part in parts]).view(shape) if wanted[0] else None
    of_parameters = (
        total(part[number] for part in parts) if wanted[number] else None
        for number in range(1, len(wanted))
    )
    return of_input, *of_parameters
