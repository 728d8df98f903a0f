"""Simulated ranks return what gloo processes return, and say who failed and where others wait."""

from __future__ import annotations

import random
import time
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from ttrace.lab.functions import WorkerPool
from ttrace.lab.simulated.exchanges import require_cpu


def collectives() -> list[Any]:
    """Every one that gloo has, on a group of all ranks and on one of two."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    half = init_device_mesh("cpu", (2, ranks // 2), mesh_dim_names=("a", "b"))["b"].get_group()
    found: list[Any] = [dist.get_backend(), dist.get_rank(half)]
    for group, size in ((None, ranks), (half, ranks // 2)):
        mine = torch.randn(size * 3, generator=torch.Generator().manual_seed(rank))
        average, parts = mine.clone(), [torch.empty_like(mine) for _ in range(size)]
        dist.all_reduce(average, op=dist.ReduceOp.AVG, group=group)
        dist.all_gather(parts, mine, group=group)
        scattered, exchanged = torch.empty(3), torch.empty_like(mine)
        dist.reduce_scatter(scattered, list(mine.chunk(size)), group=group)
        dist.all_to_all_single(exchanged, mine, group=group)
        copied = mine.clone()
        dist.broadcast(copied, group_src=size - 1, group=group)
        one, summed = torch.empty(3), mine.clone()
        is_root = dist.get_rank(group) == 0
        dist.scatter(one, list(mine.chunk(size)) if is_root else None, group_src=0, group=group)
        gathered = [torch.empty_like(mine) for _ in range(size)] if is_root else None
        dist.gather(mine, gathered, group_dst=0, group=group)
        dist.reduce(summed, group_dst=0, group=group)
        objects: list[Any] = [None] * size
        dist.all_gather_object(objects, {"rank": rank}, group=group)
        found += [average, torch.cat(parts), scattered, exchanged, copied, one, objects]
        found += [torch.cat(gathered), summed] if gathered is not None else []
    return [each.tolist() if isinstance(each, torch.Tensor) else each for each in found]


def letters() -> list[float]:
    """Each rank sends to the next, posts what it awaits before that, and takes any at last."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    box, other = torch.zeros(2), torch.zeros(2)
    awaited = dist.irecv(box, (rank - 1) % ranks)
    sent = dist.isend(torch.full((2,), float(rank)), (rank + 1) % ranks)
    assert awaited is not None
    assert sent is not None
    awaited.wait()
    sent.wait()
    sent = dist.isend(torch.full((2,), 10.0 + rank), (rank + 1) % ranks, tag=7)
    sender = dist.recv(other, tag=7)
    assert sent is not None
    sent.wait()
    return [*box.tolist(), *other.tolist(), float(sender)]


def draws() -> list[float]:
    """Of every source of random numbers, with others between."""
    rank = dist.get_rank()
    for seed in (torch.manual_seed, random.seed, np.random.seed):
        seed(rank)
    drawn = []
    for _ in range(3):
        dist.barrier()
        drawn += [torch.rand(1).item(), random.random(), float(np.random.rand())]
    return drawn


@pytest.mark.parametrize("function", [collectives, letters, draws])
def test_every_rank_returns_what_it_does_in_a_process(pool: WorkerPool, function: Any) -> None:
    of_processes = pool.run(4, function)
    assert pool.simulate(4, function) == of_processes
    assert len({str(answer) for answer in of_processes}) == 4  # so that ranks cannot be mixed up


def raises_on_one() -> None:
    if dist.get_rank() == 2:
        raise ValueError("no such file")
    dist.barrier()


def leaves_early() -> None:
    if dist.get_rank() != 1:
        dist.barrier()


def calls_another() -> None:
    tensor = torch.ones(3)
    if dist.get_rank() == 3:
        dist.broadcast(tensor, 0)
    else:
        dist.all_reduce(tensor)


def brings_another_size() -> None:
    dist.all_reduce(torch.ones(3 if dist.get_rank() else 4))


def sleeps() -> None:
    if dist.get_rank() == 1:
        time.sleep(600)
    dist.barrier()


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (raises_on_one, "ValueError: no such file"),
        (leaves_early, "no rank can go on: ranks 0, 2-3 in barrier, collective 1 of group"),
        (calls_another, "came to broadcast, collective 1 .* came to all_reduce"),
        (brings_another_size, "rank 0 of the group brought 4 of torch.float32; rank 1 of the "),
    ],
)
def test_a_run_that_cannot_go_on_ends_at_once_and_says_why(
    pool: WorkerPool, function: Any, said: str
) -> None:
    with pytest.raises(AssertionError, match=said) as failed:
        pool.simulate(4, function)
    assert str(failed.value).count("Traceback") <= 1  # of who is the reason alone


def test_a_tensor_elsewhere_than_on_the_cpu_is_refused() -> None:
    require_cpu([torch.ones(1), [torch.ones(2)]])
    with pytest.raises(RuntimeError, match="compute on the CPU; found a tensor on meta"):
        require_cpu([torch.ones(1), [torch.ones(2, device="meta")]])


def test_a_time_limit_says_which_rank_runs_and_where(pool: WorkerPool) -> None:
    with pytest.raises(AssertionError, match=r"rank 1 runs, and all others wait:\n[^$]*sleeps"):
        pool.simulate(4, sleeps, timeout_seconds=6)
