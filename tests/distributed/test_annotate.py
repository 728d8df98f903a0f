"""An annotation decides where a shape leaves open which dim is split."""

from collections.abc import Sequence

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

import ttrace
from tests.support.tracing import explain
from ttrace.errors import UsageError
from ttrace.lab.run import Function
from zoo.trials import Trials

WIDTH = 8


class Body(nn.Module):
    """Takes a square of which each rank holds some columns; halves of rows look the same."""

    def forward(self, part: Tensor) -> Tensor:
        return torch.tanh(part)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.body = nn.Linear(WIDTH, WIDTH), Body()

    def forward(self, x: Tensor) -> Tensor:
        ranks, rank = dist.get_world_size(), dist.get_rank()
        grown = self.first(x)
        square = torch.einsum("bi,bj->ij", grown, grown)
        # Interleaved: shape alone would take the first half for the first rank's.
        return self.body(square[rank::ranks] if ranks > 1 else square)


def train(annotated: bool) -> None:
    torch.manual_seed(0)
    model = Model()
    ranks, rank = dist.get_world_size(), dist.get_rank()
    if annotated and ranks > 1:
        ttrace.annotate(model.body, inputs={"0": EvenRows(dim=0, index=rank, count=ranks)})
        ttrace.annotate(model.body, outputs={"0": EvenRows(dim=0, index=rank, count=ranks)})
        ttrace.annotate(model, outputs={"0": EvenRows(dim=0, index=rank, count=ranks)})
    tracer = ttrace.attach(model)
    with tracer.step():
        model(torch.randn(4, WIDTH))


class EvenRows(ttrace.Split):
    def layout(self, local_shape: Sequence[int]) -> ttrace.Layout:
        whole = ttrace.Layout.full((local_shape[0] * self.count, *local_shape[1:]))
        from ttrace.core.layout import Run

        return whole.take(0, [Run(n * self.count + self.index, 1) for n in range(local_shape[0])])


@pytest.mark.parametrize(("annotated", "code"), [(True, 0), (False, 1)])
def test_annotation_decides(annotated: bool, code: int, trials: Trials) -> None:
    reference = Function(train, arguments=(annotated,))
    candidate = Function(train, ranks=2, arguments=(annotated,))
    result = trials.compare(reference, candidate)
    assert result.exit_code == code, explain(result)


def test_split_knows_its_layout() -> None:
    assert ttrace.Split(dim=-1, index=1, count=2).layout((3, 4)) == ttrace.Layout.full(
        (3, 8)
    ).shard(1, 1, 2)


def test_impossible_split_is_refused() -> None:
    with pytest.raises(UsageError, match="index 2 of count 2"):
        ttrace.Split(dim=0, index=2, count=2)
