"""Witnesses: values that show that a coarse tensor was rounded, and is not coarse by chance.

    fine 0.10009766, coarse 0.10009765625   the fine one has bits that the coarse format has not
    fine 1.0000001, coarse 1                a last place of float32: both stand for 1
    fine 0.3, coarse 0                      zeros are in every format

Enters: blocks of a coarse tensor and of the finer one. Leaves: how many different values of the
coarse one stand where the other is clearly between two numbers of the coarse format. Few different
values are coarse by themselves: masks, weights that are all 1, powers of two.
"""

from __future__ import annotations

import torch

ENOUGH = 64  # chosen: more tell nothing new
# Of the distance of two numbers of the format. Chosen: rounding noise of finer formats is below a
# thousandth of it, and three quarters of all values are further from both.
_CLEARLY = 1 / 8


class Witnesses:
    """Counts the different ones, as far as there are enough; `mantissa_bits` of the coarse."""

    def __init__(self, mantissa_bits: int) -> None:
        self._units = float(2 ** (mantissa_bits + 1))  # between powers of two
        self._seen: set[float] = set()

    @property
    def count(self) -> int:
        return min(len(self._seen), ENOUGH)

    @property
    def are_enough(self) -> bool:
        return len(self._seen) >= ENOUGH

    def add(self, coarse: torch.Tensor, fine: torch.Tensor) -> None:
        wide, kept = fine.double().flatten(), coarse.double().flatten()
        place = torch.frexp(wide).mantissa * self._units
        is_between = (place - place.round()).abs() >= _CLEARLY
        counts = is_between & (kept != 0) & kept.isfinite() & wide.isfinite()
        self._seen.update(kept[counts].unique()[:ENOUGH].tolist())
