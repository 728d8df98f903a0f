"""Copies of a model that is traced: they work, record nothing, and live in other processes."""

from __future__ import annotations

import copy
import io
import multiprocessing
import os
import pickle
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import ttrace
from tests.support.capturing import attach, read
from ttrace.capture.guard import Hook, does_nothing
from ttrace.capture.settings import Settings
from ttrace.capture.tracer import OffTracer


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.two(torch.tanh(self.one(x)))


@pytest.fixture
def model() -> Small:
    torch.manual_seed(0)
    return Small()


def hooks_of(model: nn.Module) -> list[object]:
    tables = ("_forward_pre_hooks", "_forward_hooks")
    return [hook for m in model.modules() for t in tables for hook in getattr(m, t).values()]


def saved(model: nn.Module) -> bytes:
    file = io.BytesIO()
    torch.save(model, file)
    return file.getvalue()


def by_save(model: nn.Module) -> nn.Module:
    loaded: nn.Module = torch.load(io.BytesIO(saved(model)), weights_only=False)
    return loaded


def by_pickle(model: nn.Module) -> nn.Module:
    loaded: nn.Module = pickle.loads(pickle.dumps(model))  # noqa: S301
    return loaded


@pytest.mark.parametrize("make", [copy.deepcopy, by_save, by_pickle])
def test_a_copy_computes_the_same_and_is_not_recorded(
    make: object, model: Small, tmp_path: Path
) -> None:
    assert callable(make)
    x = torch.ones(2, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tracer = attach(tmp_path, model, optimizer)
    with tracer.step():
        first = make(model)
        model(x).sum().backward()
        second = make(model)
        assert torch.equal(first(x), second(x))
        second(x).sum().backward()
        assert torch.equal(second.one.weight.grad, model.one.weight.grad)  # type: ignore[arg-type]
        optimizer.step()
    assert all(hook is does_nothing for each in (first, second) for hook in hooks_of(each))
    recorded = read(tmp_path)
    assert len(recorded.records("one:output.0")) == 1
    assert (recorded.summary.faults, recorded.summary.steps) == ((), 1)


def test_the_hooks_of_the_model_itself_are_no_inert_ones(model: Small, tmp_path: Path) -> None:
    attach(tmp_path, model)
    assert all(isinstance(hook, Hook) for hook in hooks_of(model))
    assert len(hooks_of(model)) == 9


@pytest.mark.flow
def test_a_saved_model_is_loaded_by_a_process_that_traces_nothing(
    model: Small, tmp_path: Path
) -> None:
    tracer = attach(tmp_path / "trace", model)
    with tracer.step():
        (tmp_path / "model.pt").write_bytes(saved(model))
    script = (
        "import sys, torch; sys.path.insert(0, sys.argv[2]); "
        "model = torch.load(sys.argv[1], weights_only=False); "
        "print(model(torch.ones(1, 4)).shape)"
    )
    root = Path(__file__).parents[3]
    environment = os.environ | {"PYTHONPATH": f"{root / 'src'}:{root}"}
    command = [sys.executable, "-c", script, str(tmp_path / "model.pt"), str(root)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert "[1, 2]" in done.stdout


def _answer(model: nn.Module, pipe: object) -> None:
    pipe.send(model(torch.ones(1, 4)).tolist())  # type: ignore[attr-defined]


def test_a_spawned_process_gets_the_model(model: Small, tmp_path: Path) -> None:
    tracer = attach(tmp_path, model)
    context = multiprocessing.get_context("spawn")
    mine, theirs = context.Pipe()
    with tracer.step():
        process = context.Process(target=_answer, args=(model, theirs))
        process.start()
        assert mine.poll(60)
        assert mine.recv() == model(torch.ones(1, 4)).tolist()
        process.join()
    assert process.exitcode == 0


def test_optimizers_are_copied_and_saved_without_hooks(model: Small, tmp_path: Path) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    tracer = attach(tmp_path, model, optimizer)
    with tracer.step():
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        other = copy.deepcopy(optimizer)
        torch.save(optimizer.state_dict(), io.BytesIO())
        torch.save(optimizer, io.BytesIO())
        other.step()
    assert read(tmp_path).summary.faults == ()
    assert read(tmp_path).summary.optimizers == ("AdamW",)


def test_a_tensor_with_a_hook_is_saved_without_a_warning(model: Small, tmp_path: Path) -> None:
    x = torch.ones(2, 4, requires_grad=True)
    tracer = attach(tmp_path, model)
    with tracer.step(), warnings.catch_warnings():
        model(x).sum().backward()
        assert x._backward_hooks
        warnings.simplefilter("error")
        torch.save(x, io.BytesIO())
        assert torch.equal(copy.deepcopy(x), x)


def test_a_copy_of_who_holds_the_tracer_traces_nothing(model: Small, tmp_path: Path) -> None:
    held = {"tracer": attach(tmp_path, model), "model": model}
    other = copy.deepcopy(held)
    assert isinstance(other["tracer"], OffTracer)
    assert isinstance(pickle.loads(pickle.dumps(held))["tracer"], OffTracer)  # noqa: S301


def test_a_copy_of_split_layers_computes_as_they_did_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(64, 64)), torch.randn(8, 64)
    plain = model(x)
    settings = Settings(folder=tmp_path, noise_seed=1, split=8)
    for name, value in settings.to_environment().items():
        monkeypatch.setenv(name, value)
    ttrace.attach(model)
    assert not torch.equal(model(x), plain)
    for make in (copy.deepcopy, by_save, by_pickle):
        assert torch.equal(make(model)(x), plain)
