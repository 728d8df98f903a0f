"""How many tokens of one expert rounding may send to another."""

from __future__ import annotations

from collections.abc import Iterable

from ttrace.analysis.tolerance.factors import CHOICES_FACTOR, CHOICES_MORE


def allowed_moves(moved_by_noise: Iterable[int]) -> float:
    """How many tokens of one expert may move; none where noise moves none at any of them."""
    most = max(moved_by_noise, default=0)
    return CHOICES_FACTOR * most + CHOICES_MORE if most else 0.0
