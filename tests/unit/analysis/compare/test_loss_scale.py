"""The scale of the loss, where the first step overflowed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, cast

import pytest

from ttrace.analysis.compare import Comparator, find_loss_scale
from ttrace.core.ids import TensorId
from ttrace.core.layout import Layout
from ttrace.core.logical import LogicalTensor, Piece
from ttrace.core.record import Record


class Gains:
    """What a comparator measures, by the step of the gradient."""

    def __init__(self, of_steps: Mapping[int, float]) -> None:
        self.of_steps = of_steps

    def gain(self, reference: Any, piece: Piece) -> float:
        return self.of_steps[piece.records[0].id.step]


def gradient(step: int, sequence: int) -> tuple[TensorId, LogicalTensor]:
    id_ = TensorId.parse(f"step{step}/head:grad_output.0")
    layout = Layout.full((4, 4))
    record = Record(id=id_, rank=0, sequence=sequence, dtype="float32", shape=(4, 4), layout=layout)
    return id_, LogicalTensor(shape=(4, 4), pieces=(Piece(layout=layout, records=(record,)),))


def factor(*gains: float) -> float:
    pairs = {
        id_: (tensor, tensor)
        for id_, tensor in (gradient(step, 10 + step) for step in range(len(gains)))
    }
    found = find_loss_scale(
        cast(Comparator, Gains(dict(enumerate(gains)))),
        pairs,
        reference_splits=[1],
        candidate_splits=[2],
    )
    return found.factor


@pytest.mark.parametrize("overflowed", [math.nan, math.inf])
def test_is_that_of_the_first_step_with_finite_gradients(overflowed: float) -> None:
    assert factor(overflowed, 2.0) == 2.0


def test_is_that_of_the_first_step_where_it_is_finite() -> None:
    assert factor(2.0, 1.0) == 2.0


def test_is_one_where_none_is_finite() -> None:
    assert factor(math.nan, math.nan) == 1.0
