"""Watched loops of every shape: when a step ends, what a gradient is, and what hangs no run."""

import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

import ttrace
from tests.support.watching import add_ulp, batch, ddp, loop, small, watched
from ttrace.capture.replicas import exchange
from ttrace.core.drift import SharedKind, WatchedRun
from ttrace.lab.functions import WorkerPool
from ttrace.trace.progress import read_refusals

LOOPS = [
    *("accumulated", "outside", "begun and ended", "closure", "scaler", "two optimizers"),
    *("inside backward", "unused", "tied", "frozen", "compressed", "raising", "two models"),
    "no optimizer",
]


class Odd(nn.Module):
    """With a branch for every odd thing that a model has."""

    def __init__(self, loop: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.spare = nn.Linear(4, 4)
        if loop == "tied":
            self.second.weight = self.first.weight
        self.spare.requires_grad_(loop != "frozen")
        self.uses_spare = loop != "unused"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = self.second(self.first(x).tanh())
        return made + self.spare(x) if self.uses_spare else made


def train(kind: str, wrong: bool = False, steps: int = 4) -> None:
    """An ulp in the second linear of rank 1 in step 2, if it is wrong."""
    inner = Odd(kind)
    model = ddp(inner, find_unused_parameters=kind == "unused")
    if kind == "compressed":
        model.register_comm_hook(None, fp16_compress_hook)
    optimizers = _optimizers(kind, inner)
    tracer = _attached(kind, model, optimizers)
    for step in range(steps):
        _STEPS.get(kind, _plain)(step, model, optimizers, tracer)
        if wrong and step == 1 and dist.get_rank() == 1:
            add_ulp(inner.second.bias)


def _optimizers(kind: str, inner: Odd) -> list[torch.optim.Optimizer]:
    if kind == "two optimizers":
        return [torch.optim.SGD(part.parameters(), lr=0.1) for part in (inner.first, inner.second)]
    if kind == "inside backward":
        made = {p: torch.optim.SGD([p], lr=0.1) for p in inner.parameters()}
        return list(made.values())
    if kind == "no optimizer":
        return []
    return [torch.optim.SGD([p for p in inner.parameters() if p.requires_grad], lr=0.1)]


def _attached(kind: str, model: nn.Module, optimizers: list[Any]) -> Any:
    if kind == "two models":
        critic = ddp(nn.Linear(3, 3))
        ttrace.attach(critic, torch.optim.SGD(critic.parameters(), lr=0.1))
    return ttrace.attach(model, optimizers)


def _backward(model: nn.Module, step: int, scale: Any = 1.0) -> None:
    (model(batch(step)).square().mean() * scale).backward()


def _plain(step: int, model: nn.Module, optimizers: list[Any], tracer: Any) -> None:
    with tracer.step():
        _backward(model, step)
        for optimizer in optimizers:
            optimizer.step()
        if not optimizers:
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.sub_(0.1 * parameter.grad)  # type: ignore[operator]
        model.zero_grad()


def _accumulated(step: int, model: Any, optimizers: list[Any], tracer: Any) -> None:
    for micro in range(3):
        with tracer.step(), model.no_sync() if micro < 2 else nullcontext():
            _backward(model, 3 * step + micro)
            if micro == 2:
                optimizers[0].step()
                optimizers[0].zero_grad()


def _outside(step: int, model: nn.Module, optimizers: list[Any], tracer: Any) -> None:
    with tracer.step():
        _backward(model, step)
    optimizers[0].step()
    optimizers[0].zero_grad()


def _begun(step: int, model: nn.Module, optimizers: list[Any], tracer: Any) -> None:
    tracer.begin()
    tracer.begin()
    _backward(model, step)
    optimizers[0].step()
    tracer.end()
    optimizers[0].zero_grad()
    tracer.end()


def _closure(step: int, model: nn.Module, optimizers: list[Any], tracer: Any) -> None:
    def closure() -> float:
        optimizers[0].zero_grad()
        _backward(model, step)
        return 0.0

    with tracer.step():
        optimizers[0].step(closure)


def _scaled(step: int, model: nn.Module, optimizers: list[Any], tracer: Any) -> None:
    """The second step overflows, and is left out."""
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    with tracer.step():
        _backward(model, step, scaler.scale(torch.tensor(torch.inf if step == 1 else 1.0)))
        scaler.step(optimizers[0])
        scaler.update()
        optimizers[0].zero_grad()


def _inside(step: int, model: nn.Module, optimizers: list[Any], tracer: Any) -> None:
    """As an optimizer does that DDP calls for every reduced bucket."""
    with tracer.step():
        _backward(model, step)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()


def _raising(step: int, model: nn.Module, optimizers: list[Any], tracer: Any) -> None:
    try:
        with tracer.step():
            if step == 1:
                raise MemoryError
            _backward(model, step)
            optimizers[0].step()
            optimizers[0].zero_grad()
    except MemoryError:
        pass


_STEPS = {
    "accumulated": _accumulated,
    "outside": _outside,
    "begun and ended": _begun,
    "closure": _closure,
    "scaler": _scaled,
    "inside backward": _inside,
    "raising": _raising,
}
# What a scaler leaves out, or an exception, is no step.
STEPS = {"scaler": 3, "raising": 3}


@pytest.mark.parametrize("kind", LOOPS)
def test_a_loop_is_clean_and_a_drift_in_it_is_found(
    kind: str, pool: WorkerPool, tmp_path: Path
) -> None:
    clean = watched(pool, tmp_path / "clean", 2, train, kind)
    assert (clean.drifts, clean.broke_off, clean.ended) == ((), None, True), clean
    assert (clean.steps, clean.watched) == (STEPS.get(kind, 4),) * 2
    assert clean.compared[SharedKind.PARAMETER] == (5 if kind == "tied" else 6) + 2 * (
        kind == "two models"
    )
    drifted = watched(pool, tmp_path / "wrong", 2, train, kind, True)
    found = {(drift.kind, drift.name) for drift in drifted.drifts}
    assert found == {(SharedKind.PARAMETER, "bias")}, drifted


def test_gradients_are_compared_in_each_loop(pool: WorkerPool, tmp_path: Path) -> None:
    for kind, count in {"accumulated": 6, "closure": 6, "unused": 4, "frozen": 4}.items():
        run = watched(pool, tmp_path / kind, 2, train, kind)
        assert run.compared[SharedKind.GRADIENT] == count, kind


# Chosen: no rank of a busy machine is so late by itself. Who waited for it in each of six steps
# would need twice the limit below.
WAIT_SECONDS, LIMIT_SECONDS = 5.0, 15.0


@contextmanager
def waiting_for(seconds: float) -> Iterator[None]:
    with mock.patch.object(exchange, "TIMEOUT", timedelta(seconds=seconds)):
        yield


def train_apart(how: str) -> float:
    """Models that no collective keeps together; the last rank stops, leaves or breaks."""
    model = small()
    is_last = dist.get_rank() == 1
    if how == "never attaches" and is_last:
        time.sleep(WAIT_SECONDS + 1)
        return 0.0
    began = time.monotonic()
    with waiting_for(60.0 if how == "all come" else WAIT_SECONDS):
        if how == "fault" and is_last:
            with mock.patch("ttrace.capture.replicas.held.bit_digest", side_effect=OSError(5)):
                loop(model, 6)
        else:
            loop(model, 3 if how == "stops" and is_last else 6, after_update=_alike)
    if how == "stops" and is_last:
        time.sleep(WAIT_SECONDS + 1)  # still there, and never asks again
    return time.monotonic() - began


def _alike(_: int, model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.detach().zero_()


def run_apart(pool: WorkerPool, folder: Path, how: str) -> tuple[WatchedRun, float]:
    began = time.monotonic()
    run = watched(pool, folder, 2, train_apart, how)
    return run, time.monotonic() - began


@pytest.mark.parametrize("how", ["stops", "never attaches", "fault"])
def test_a_rank_that_does_not_come_ends_the_watching_and_not_the_run(
    how: str, pool: WorkerPool, tmp_path: Path
) -> None:
    run, seconds = run_apart(pool, tmp_path, how)
    assert run.broke_off is not None
    assert run.drifts == ()
    assert run.watched == (3 if how == "stops" else 0)
    assert seconds < LIMIT_SECONDS
    assert bool(read_refusals(tmp_path)) == (how == "fault")


def test_ranks_that_all_come_are_watched_to_the_end(pool: WorkerPool, tmp_path: Path) -> None:
    run, _ = run_apart(pool, tmp_path, "all come")
    assert (run.broke_off, run.watched, run.steps) == (None, 6, 6)


def train_alone() -> None:
    loop(small(), 2)


def test_a_process_alone_has_nothing_to_compare(pool: WorkerPool, tmp_path: Path) -> None:
    run = watched(pool, tmp_path, 1, train_alone)
    assert (run.world_size, run.steps, run.watched, run.is_compared) == (1, 2, 0, False)
