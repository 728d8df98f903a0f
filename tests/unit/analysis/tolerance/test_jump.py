"""How far rounding can move one element of an updated parameter."""

from pathlib import Path

import pytest
import torch

from tests.support.made_traces import write_rank
from ttrace.analysis.tolerance.yardstick import Jump, jumps
from ttrace.core.ids import TensorId
from ttrace.core.layout import Layout
from ttrace.core.logical import LogicalTensor, Piece
from ttrace.trace.reader import Trace
from ttrace.trace.spans import SpanReader

EPS = torch.finfo(torch.float32).eps


def jump(
    folder: Path, before: torch.Tensor, gradient: torch.Tensor, after: torch.Tensor, noise: float
) -> Jump:
    names = ("a:param.weight", "a:main_grad.weight", "a:param_after.weight")
    tensors = dict(zip(names, (before, gradient, after), strict=True))
    trace = Trace.open(write_rank(folder, 0, 1, tensors))

    def logical(name: str) -> LogicalTensor:
        (record,) = trace.by_id()[TensorId.parse(f"step0/{name}")]
        piece = Piece(layout=Layout.full(record.shape), records=(record,))
        return LogicalTensor(shape=record.shape, pieces=(piece,))

    with SpanReader(folder) as spans:
        return jumps(
            spans,
            before=logical(names[0]),
            gradient=logical(names[1]),
            after=logical(names[2]),
            gradient_noise=noise,
        )


ONES = torch.ones(4)


def test_a_gradient_within_its_noise_may_turn_its_update_round(tmp_path: Path) -> None:
    gradient = torch.tensor([1.0, 1.0, 1.0, 1e-9])
    found = jump(tmp_path, ONES, gradient, ONES - 0.25, noise=1e-3)
    assert found.element == pytest.approx(2 * 0.25)


def test_a_large_gradient_moves_by_the_share_of_its_noise(tmp_path: Path) -> None:
    # the root mean square of the noise is 1e-3 / sqrt(4); six times that is what it may reach
    found = jump(tmp_path, ONES, ONES, ONES - 0.25, noise=1e-3)
    assert found.element == pytest.approx(0.25 * 6 * 1e-3 / 2, rel=1e-4)


@pytest.mark.parametrize("gradient", [0.0, 1.0])
def test_without_noise_a_unit_in_the_last_place_is_left(gradient: float, tmp_path: Path) -> None:
    found = jump(tmp_path, ONES, gradient * ONES, torch.tensor([0.5, 1, 3, 1]), noise=0.0)
    assert found.element == pytest.approx(3 * EPS)


def test_a_low_precision_parameter_is_rounded_to_its_own_places(tmp_path: Path) -> None:
    after = ONES.bfloat16()
    assert jump(tmp_path, after, ONES, after, noise=0.0).element == torch.finfo(torch.bfloat16).eps
