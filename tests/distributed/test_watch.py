"""A watched run: replicas that begin to differ are named, whatever is meant to differ is not."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from tests.support.watching import add_ulp, batch, ddp, loop, small, watched
from ttrace.core.drift import Drift, SharedKind, WatchedRun
from ttrace.lab.functions import WorkerPool

GRADIENT, PARAMETER, BUFFER = SharedKind
LAST = "2"  # the path of the last linear


def assert_clean(run: WatchedRun, **compared: int) -> None:
    assert (run.drifts, run.broke_off, run.ended) == ((), None, True), run
    assert {kind.value: count for kind, count in run.compared.items()} == compared


def only(run: WatchedRun) -> Drift:
    assert len(run.drifts) == 1, run
    return run.drifts[0]


def train_ddp(wrong_rank: int | None, what: str = PARAMETER, steps: int = 5) -> list[list[float]]:
    """An ulp in step 3, on one rank."""

    def fault(step: int, model: Any) -> None:
        if step == 3 and dist.get_rank() == wrong_rank:
            weight = model.module[2].weight
            add_ulp(weight.grad if what == GRADIENT else weight)

    moment = "before_update" if what == GRADIENT else "after_update"
    return loop(ddp(small()), steps, **{moment: fault})


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("kind", [PARAMETER, GRADIENT])
def test_one_ulp_on_one_rank_is_found_in_its_step(
    ranks: int, kind: SharedKind, pool: WorkerPool, tmp_path: Path
) -> None:
    run = watched(pool, tmp_path, ranks, train_ddp, ranks - 1, kind)
    drift = run.drifts[0]
    assert (drift.step, drift.kind, drift.module, drift.name) == (3, kind, LAST, "weight")
    assert drift.ranks == ((0, 1) if ranks == 2 else (3,))
    assert drift.majority == (() if ranks == 2 else (0, 1, 2))
    assert [len(version.ranks) for version in drift.versions] == [ranks - 1, 1]
    assert {each.tensor for each in run.drifts} == {"2.weight"}


@pytest.mark.parametrize("ranks", [2, 4])
def test_the_same_run_without_it_is_silent(ranks: int, pool: WorkerPool, tmp_path: Path) -> None:
    run = watched(pool, tmp_path, ranks, train_ddp, None)
    assert_clean(run, gradient=4, parameter=4)
    assert (run.steps, run.watched, run.world_size) == (5, 5, ranks)


def test_a_thousand_clean_steps_are_silent(pool: WorkerPool, tmp_path: Path) -> None:
    run = watched(pool, tmp_path, 2, train_ddp, None, PARAMETER, 1000)
    assert_clean(run, gradient=4, parameter=4)
    assert run.watched == 1000


def test_watching_changes_no_number(pool: WorkerPool, tmp_path: Path) -> None:
    alone = pool.run(2, train_ddp, None)
    environment = {"TTRACE_WATCH": str(tmp_path)}
    assert pool.run(2, train_ddp, None, environment=environment) == alone


def test_steps_between_the_watched_are_found_out_with_the_next(
    pool: WorkerPool, tmp_path: Path
) -> None:
    run = watched(pool, tmp_path, 2, train_ddp, 1, PARAMETER, 8, every=4)
    assert (only(run).step, run.steps, run.watched) == (4, 8, 2)
    later = watched(pool, tmp_path / "later", 2, train_ddp, 1, PARAMETER, 8, skip=2, every=3)
    assert (only(later).step, later.watched) == (5, 2)


def test_what_is_left_out_is_not_compared(pool: WorkerPool, tmp_path: Path) -> None:
    without = frozenset({GRADIENT})
    run = watched(pool, tmp_path, 2, train_ddp, None, without=without)
    assert_clean(run, parameter=4)


def train_normed(fault: str) -> None:
    """BatchNorm gathers what its own rank sees; a table of constants is the same on all."""
    model = small(norm=True)
    model.register_buffer("table", torch.arange(5.0))

    def spoil(step: int, wrapped: Any) -> None:
        if step == 3 and dist.get_rank() == 1 and fault == "table":
            add_ulp(wrapped.module.table)

    wrapped = ddp(model, broadcast_buffers=fault == "broadcast")
    loop(wrapped, 20, after_update=spoil)


@pytest.mark.parametrize("broadcast", ["broadcast", "own"])
def test_running_statistics_are_each_rank_s_own(
    broadcast: str, pool: WorkerPool, tmp_path: Path
) -> None:
    run = watched(pool, tmp_path, 2, train_normed, broadcast)
    assert_clean(run, gradient=6, parameter=6, buffer=2)
    assert run.unjudged == {BUFFER: 2}
    assert run.names == ("buffer 1.running_mean", "buffer 1.running_var")


def test_a_constant_that_changes_on_one_rank_is_found(pool: WorkerPool, tmp_path: Path) -> None:
    drift = only(watched(pool, tmp_path, 2, train_normed, "table"))
    assert (drift.step, drift.kind, drift.tensor) == (3, BUFFER, "(model).table")


def train_zeros_first(alike: int) -> None:
    """A layer whose input is zero for a while: its statistics are alike until it is not."""

    class Late(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(4)
            self.last = nn.Linear(4, 3)
            self.calls = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            return self.last(self.norm(x * float(self.calls > alike)) + x)

    torch.manual_seed(0)
    loop(ddp(Late(), broadcast_buffers=False), 16)


def test_statistics_that_are_alike_for_a_few_steps_are_no_replicas(
    pool: WorkerPool, tmp_path: Path
) -> None:
    run = watched(pool, tmp_path, 2, train_zeros_first, 3)
    assert_clean(run, gradient=4, parameter=4, buffer=3)
    assert run.unjudged == {BUFFER: 2}


def test_what_was_alike_through_many_changes_is(pool: WorkerPool, tmp_path: Path) -> None:
    run = watched(pool, tmp_path, 2, train_zeros_first, 12)
    assert {drift.kind for drift in run.drifts} == {BUFFER}


def train_sharded(layout: str, wrong_rank: int | None) -> None:
    model = small()
    sizes, names = ((2, 2), ("replica", "shard")) if layout == "hsdp" else ((4,), ("dp",))
    mesh = init_device_mesh("cpu", sizes, mesh_dim_names=names)
    fully_shard(model, mesh=mesh)

    def fault(step: int, model: Any) -> None:
        if step == 2 and dist.get_rank() == wrong_rank:
            weight = model[2].weight
            assert isinstance(weight, DTensor)
            add_ulp(weight.to_local())

    loop(model, 4, after_update=fault)


def test_shards_have_no_replicas(pool: WorkerPool, tmp_path: Path) -> None:
    run = watched(pool, tmp_path, 4, train_sharded, "fsdp", 2)
    assert (run.drifts, run.compared, run.watched) == ((), {}, 4)
    assert not run.is_compared


def test_shards_of_a_hybrid_do(pool: WorkerPool, tmp_path: Path) -> None:
    # Each of 4 tensors is in two parts, of which two ranks hold each.
    assert_clean(watched(pool, tmp_path, 4, train_sharded, "hsdp", None), gradient=8, parameter=8)
    drift = only(watched(pool, tmp_path / "drift", 4, train_sharded, "hsdp", 3))
    assert (drift.step, drift.tensor, drift.ranks) == (2, "2.weight", (1, 3))


def train_by_hand(fault: bool) -> None:
    """Linears split by hand: ranks hold parts that look alike, and one layer that is the same."""
    torch.manual_seed(0)
    split = nn.Linear(4, 6)
    model = nn.Sequential(split, nn.Tanh(), nn.Linear(6, 3))
    torch.manual_seed(1 + dist.get_rank() % 2)  # of two parts, on four ranks
    nn.init.normal_(split.weight)
    nn.init.zeros_(split.bias)

    def reduce(step: int, model: Any) -> None:
        for parameter in model[2].parameters():
            dist.all_reduce(parameter.grad)
        for at, parameter in enumerate(model[0].parameters()):
            parts = [torch.empty_like(parameter.grad) for _ in range(4)]
            dist.all_gather(parts, parameter.grad)
            parameter.grad.copy_(parts[dist.get_rank() % 2] + parts[dist.get_rank() % 2 + 2])
            if fault and step == 2 and dist.get_rank() == 2 and at == 0:
                add_ulp(parameter.grad)

    loop(model, 4, before_update=reduce)


def test_parts_that_look_alike_are_recognised_by_their_content(
    pool: WorkerPool, tmp_path: Path
) -> None:
    run = watched(pool, tmp_path, 4, train_by_hand, False)
    assert_clean(run, gradient=6, parameter=6)
    assert run.unjudged == {GRADIENT: 2, PARAMETER: 2}
    wrong = watched(pool, tmp_path / "wrong", 4, train_by_hand, True)
    drift = wrong.drifts[0]
    assert (drift.step, drift.kind, drift.tensor) == (2, GRADIENT, "0.weight")
    assert drift.ranks == (0, 2)


def train_and_reduce_inside() -> None:
    """An optimizer that reduces gradients itself."""

    class Reducing(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            for group in self.param_groups:
                for parameter in group["params"]:
                    dist.all_reduce(parameter.grad)
            super().step(closure)

    import ttrace

    model = small()
    optimizer = Reducing(model.parameters(), lr=0.01)
    tracer = ttrace.attach(model, optimizer)
    for step in range(4):
        with tracer.step():
            model(batch(step)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()


def test_gradients_that_the_optimizer_reduces_are_not_judged(
    pool: WorkerPool, tmp_path: Path
) -> None:
    run = watched(pool, tmp_path, 2, train_and_reduce_inside)
    assert_clean(run, parameter=4)
    assert run.unjudged == {GRADIENT: 4}
