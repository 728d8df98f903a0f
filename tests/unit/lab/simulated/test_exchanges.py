"""Sums are those of gloo, to the bit; which those in the order of ranks are not."""

from __future__ import annotations

from functools import reduce

import pytest
import torch
import torch.distributed as dist

from ttrace.lab.functions import WorkerPool
from ttrace.lab.simulated.exchanges import gloo_reduced

SIZES = (1, 3, 7, 64, 1001, 300_001)  # the last has several of gloo's segments for each rank
DTYPES = (torch.float32, torch.bfloat16)


def held(rank: int, size: int) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(1000 * size + rank))


def all_reduced() -> list[torch.Tensor]:
    """By gloo."""
    results = []
    for size in SIZES:
        for dtype in DTYPES:
            tensor = held(dist.get_rank(), size).to(dtype)
            dist.all_reduce(tensor)
            results.append(tensor)
    return results


def test_sums_are_those_of_gloo_to_the_bit(pool: WorkerPool) -> None:
    of_gloo = pool.run(4, all_reduced)[0]
    cases = [(size, dtype) for size in SIZES for dtype in DTYPES]
    in_order_of_ranks = []
    for (size, dtype), theirs in zip(cases, of_gloo, strict=True):
        tensors = [held(rank, size).to(dtype) for rank in range(4)]
        assert torch.equal(gloo_reduced(tensors, dist.ReduceOp.SUM), theirs), (size, dtype)
        in_order_of_ranks.append(torch.equal(reduce(torch.add, tensors), theirs))
    assert not all(in_order_of_ranks)


@pytest.mark.parametrize("count", [1, 2, 5])
def test_other_reductions_are_what_they_are_called(count: int) -> None:
    tensors = [held(rank, 11) for rank in range(count)]
    stacked = torch.stack(tensors)
    assert torch.equal(gloo_reduced(tensors, dist.ReduceOp.MAX), stacked.amax(0))
    assert torch.equal(gloo_reduced(tensors, dist.ReduceOp.MIN), stacked.amin(0))
    torch.testing.assert_close(gloo_reduced(tensors, dist.ReduceOp.AVG), stacked.mean(0))
    torch.testing.assert_close(gloo_reduced(tensors, dist.ReduceOp.PRODUCT), stacked.prod(0))


def test_what_gloo_cannot_is_refused() -> None:
    with pytest.raises(NotImplementedError, match="simulated ranks do not reduce by"):
        gloo_reduced([torch.ones(1)], "PREMUL_SUM")
