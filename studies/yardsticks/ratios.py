"""How far a candidate is from a reference, in units of a yardstick.

    |candidate - reference| / max(|yardstick - reference|, eps |reference|)

Enters: gradients of the three. Leaves: the largest ratio over parameters, of the norm and of the
largest element.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from studies.yardsticks.subjects import Case, Gradients

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    norm: float
    element: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One line of a table: the ratio by the name of its yardstick, None where it means nothing."""

    case: Case
    dtype: str
    ratios: Mapping[str, Ratio | None]


def ratio(reference: Gradients, candidate: Gradients, yardstick: Gradients) -> Ratio:
    def of(name: str, order: float) -> float:
        eps = torch.finfo(reference[name].dtype).eps
        whole = reference[name].double()
        unit = max(_size(yardstick[name].double() - whole, order), eps * _size(whole, order))
        off = _size(candidate[name].double() - whole, order)
        return off / unit if off else 0.0

    return Ratio(
        norm=max(of(name, 2) for name in reference),
        element=max(of(name, torch.inf) for name in reference),
    )


def largest(ratios: Sequence[Ratio]) -> Ratio | None:
    if not ratios:
        return None
    return Ratio(norm=max(r.norm for r in ratios), element=max(r.element for r in ratios))


def _size(values: Tensor, order: float) -> float:
    return float(torch.linalg.vector_norm(values, order))
