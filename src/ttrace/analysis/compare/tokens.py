"""Tokens that a router sends elsewhere: a category of its own, not an error of the expert.

A router takes the largest of several numbers. Where two are nearly equal, rounding decides, and a
token goes to another expert: its row is then missing at one expert and new at another. The values
of such tokens say nothing of the experts, so they are left out of the comparison (compare.py), and
their number is judged by how many the noise of a perturbed reference moves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ttrace.analysis.compare.compare import Measured
from ttrace.core.ids import Kind, TensorId
from ttrace.core.results import TensorResult, Verdict


def moved_before(id_: TensorId, moved: Mapping[TensorId, int]) -> int:
    """How many tokens had moved on their way to the module of this tensor, or one around it.

    An isolated run can give a token the reference's values, but cannot bring it where it is not:
    those that moved outside are missing inside too.
    """
    names = id_.module.split(".")
    around = {".".join(names[:end]) for end in range(1, len(names))}
    around |= set() if id_.kind is Kind.INPUT else {id_.module}
    return max(
        (
            count
            for other, count in moved.items()
            if other.kind is Kind.INPUT and other.module in around and other.step == id_.step
        ),
        default=0,
    )


def with_moves(result: TensorResult, measured: Measured | None, allowed: float) -> TensorResult:
    """The verdict with what moved tokens add to it."""
    if measured is None or not measured.moved:
        return result
    tokens = f"{measured.moved} token{'s' if measured.moved > 1 else ''} routed elsewhere"
    if measured.moved > allowed:
        ratio = max(result.ratio or 0.0, measured.moved / allowed if allowed else float("inf"))
        note = f"{tokens}, noise explains {allowed:g}"
        return replace(result, verdict=Verdict.MISMATCH, ratio=ratio, note=note)
    note = f"{result.note}; {tokens}" if result.note else tokens
    return replace(result, note=note)
