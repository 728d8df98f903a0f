"""Nothing of a tracer stays in a process: no descriptor, hook, thread or patch."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.pipelining import stage as pipeline_stage
from torch.distributed.tensor import DTensor
from torch.nn.utils import clip_grad
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

import ttrace
from tests.support.capturing import attach, hook_count, read
from ttrace.capture.guard import Guard
from ttrace.capture.hooks import ModuleHooks
from ttrace.capture.settings import Settings
from ttrace.trace.writer import TraceWriter


def patchable() -> dict[str, Any]:
    owners: tuple[Any, ...] = (
        *(torch.autograd, torch.Tensor, nn.Module, clip_grad, torch.amp.GradScaler, DTensor),
        *(FullyShardedDataParallel, pipeline_stage, pipeline_stage._PipelineStageBase),
    )
    found = {f"{owner.__name__}.{name}": v for owner in owners for name, v in vars(owner).items()}
    for name, value in vars(clip_grad).items():
        for number, cell in enumerate(getattr(value, "__closure__", None) or ()):
            found[f"{name} {number}"] = cell.cell_contents
    return found


class Process:
    """What a run may look at before and after."""

    def __init__(self, model: nn.Module, *optimizers: torch.optim.Optimizer) -> None:
        self._model, self._optimizers = model, optimizers
        self._patchable = patchable()
        self._state = self.state()

    def state(self) -> tuple[Any, ...]:
        return (
            len(list(Path("/proc/self/fd").iterdir())),
            threading.active_count(),
            hook_count(self._model, *self._optimizers),
            len(_get_current_dispatch_mode_stack()),
            torch.is_grad_enabled(),
        )

    def changes(self) -> list[str]:
        """What is not as it was."""
        now = patchable()
        patches = [name for name, value in self._patchable.items() if now.get(name) is not value]
        names = ("descriptors", "threads", "hooks", "modes", "autograd")
        both = zip(names, self._state, self.state(), strict=True)
        return patches + [f"{name}: {was} -> {found}" for name, was, found in both if was != found]


class Run:
    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.process = Process(self.model, self.optimizer)

    def step(self) -> None:
        self.model(torch.ones(2, 4)).sum().backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 0.1)
        self.optimizer.step()


@pytest.fixture
def traced() -> Run:
    return Run()


def test_inside_of_a_step_there_is_something_to_find(traced: Run, tmp_path: Path) -> None:
    tracer = attach(tmp_path, traced.model, traced.optimizer, noise_seed=1)
    with tracer.step():
        found = " ".join(traced.process.changes())
        traced.step()
    for part in ("autograd.backward", "clip_grads_with_norm", "descriptors", "hooks", "modes"):
        assert part in found
    assert "threads" not in found


@pytest.mark.parametrize("noise_seed", [None, 1])
def test_after_the_last_step(traced: Run, tmp_path: Path, noise_seed: int | None) -> None:
    tracer = attach(tmp_path, traced.model, traced.optimizer, noise_seed=noise_seed)
    with tracer.step():
        traced.step()
    assert traced.process.changes() == []
    assert read(tmp_path).summary.steps == 1


def test_after_a_step_whose_update_came_later(traced: Run, tmp_path: Path) -> None:
    """The optimizer's last hook takes itself off while the optimizer goes through its hooks."""
    called = []
    tracer = attach(tmp_path, traced.model, traced.optimizer)
    hook = traced.optimizer.register_step_post_hook(lambda *_: called.append(1))
    with tracer.step():
        traced.model(torch.ones(2, 4)).sum().backward()
    traced.optimizer.step()
    hook.remove()
    assert called == [1]
    assert traced.process.changes() == []
    assert read(tmp_path).summary.faults == ()


def step_and_raise(run: Run, error: BaseException) -> None:
    run.step()
    raise error


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_after_an_exception_in_a_step(
    error: type[BaseException], traced: Run, tmp_path: Path
) -> None:
    tracer = attach(tmp_path, traced.model, traced.optimizer, steps=2, noise_seed=1)
    with tracer.step():
        traced.step()
    with pytest.raises(error, match="mine"), tracer.step():
        step_and_raise(traced, error("mine"))
    assert traced.process.changes() == []
    assert read(tmp_path).trace.ranks[0].summary is None


def test_after_an_update_outside_of_a_step_that_raised(traced: Run, tmp_path: Path) -> None:
    def refuse(*_: Any) -> None:
        raise ValueError("mine")

    tracer = attach(tmp_path, traced.model, traced.optimizer, steps=2)
    hook = traced.optimizer.register_step_pre_hook(refuse)
    with tracer.step():
        traced.model(torch.ones(2, 4)).sum().backward()
    with pytest.raises(ValueError, match="mine"):
        traced.optimizer.step()
    hook.remove()
    with tracer.step():
        traced.step()
    assert traced.process.changes() == []


def test_after_it_was_withdrawn_for_another(traced: Run, tmp_path: Path) -> None:
    first = attach(tmp_path, traced.model, traced.optimizer)
    other = nn.Linear(2, 2)
    attach(tmp_path, other)
    with first.step():
        traced.step()
        other(torch.ones(1, 2)).sum().backward()
    assert traced.process.changes() == []
    assert hook_count(other) == 0
    assert read(tmp_path).summary.steps == 1


@pytest.mark.parametrize(
    "what",
    [(ModuleHooks, "__init__"), (ModuleHooks, "_enter"), (TraceWriter, "close")],
    ids=lambda what: what[1],
)
def test_after_a_fault(
    what: tuple[type, str], traced: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise MemoryError("planted")

    monkeypatch.setattr(*what, fail)
    tracer = attach(tmp_path, traced.model, traced.optimizer)
    with tracer.step():
        traced.step()
    assert traced.process.changes() == []


def test_after_an_isolated_run(
    traced: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reads the reference from files."""
    from ttrace.analysis.isolate import write_plans

    for name, value in Settings(folder=tmp_path / "tapped", tap=True).to_environment().items():
        monkeypatch.setenv(name, value)
    with ttrace.attach(traced.model, traced.optimizer).step():
        traced.step()
    write_plans(tmp_path / "tapped", tmp_path / "tapped", tmp_path / "plans")
    run = Run()
    settings = Settings(folder=tmp_path / "isolated", plan=tmp_path / "plans")
    for name, value in settings.to_environment().items():
        monkeypatch.setenv(name, value)
    with ttrace.attach(run.model, run.optimizer).step():
        run.step()
        assert any("descriptors" in change for change in run.process.changes())
    assert run.process.changes() == []


def test_a_handle_that_cannot_be_taken_off_leaves_the_others_alone() -> None:
    class Stuck:
        def remove(self) -> None:
            raise OSError("planted")

    model = nn.Linear(1, 1)
    handles = Guard().handles
    handles.add(Stuck(), model.register_forward_hook(lambda *_: None))
    handles.remove()
    assert hook_count(model) == 0
