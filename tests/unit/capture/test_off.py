from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import ttrace
from tests.support.capturing import attach, hook_count
from ttrace.capture.settings import NOISE_SEED, OUT, STEPS
from ttrace.trace.progress import read_refusals


@pytest.fixture(autouse=True)
def untraced(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (OUT, STEPS, NOISE_SEED):
        monkeypatch.delenv(name, raising=False)


def small() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def test_an_untraced_run_gets_no_hook() -> None:
    model, optimizer = small()
    tracer = ttrace.attach(model, optimizer)
    with tracer.step():
        model(torch.ones(2, 4)).sum().backward()
        assert hook_count(model, optimizer) == 0
    assert not tracer.enabled


def test_a_traced_run_gets_hooks_so_the_count_can_fail(tmp_path: Path) -> None:
    model, optimizer = small()
    tracer = attach(tmp_path, model, optimizer)
    assert tracer.enabled
    assert hook_count(model, optimizer) == 3 * 3 + 2


def test_backward_is_replaced_only_inside_a_traced_step(tmp_path: Path) -> None:
    original = torch.autograd.backward
    model, _ = small()
    with ttrace.attach(model).step():
        assert torch.autograd.backward is original
    tracer = attach(tmp_path, model)
    assert torch.autograd.backward is original
    with tracer.step():
        assert torch.autograd.backward is not original
    assert torch.autograd.backward is original


def test_an_untraced_run_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    model, optimizer = small()
    with ttrace.attach(model, optimizer).step():
        model(torch.ones(2, 4)).sum().backward()
    assert not list(tmp_path.iterdir())


def test_an_empty_folder_name_means_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(OUT, "")
    assert not ttrace.attach(nn.Linear(1, 1)).enabled


def test_an_untraced_loss_is_handed_back() -> None:
    loss = torch.ones(())
    assert ttrace.attach(nn.Linear(1, 1)).loss(loss) is loss


@pytest.mark.flow
def test_importing_and_attaching_an_untraced_run_loads_no_framework() -> None:
    """The second list shows that the first could have been something else than empty."""
    script = """
import json, sys
import ttrace, torch
def loaded():
    names = ("torch.distributed.tensor", "torch.distributed.fsdp", "rich", "typer")
    return [name for name in names if name in sys.modules]
with ttrace.attach(torch.nn.Linear(1, 1)).step():
    untraced = loaded()
import ttrace.adapters.native.adapter
print(json.dumps([untraced, loaded()]))
"""
    source = str(Path(ttrace.__file__).parents[1])
    environment = os.environ | {"PYTHONPATH": source}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
    )
    untraced, traced = json.loads(done.stdout)
    assert untraced == []
    assert traced == ["torch.distributed.tensor", "torch.distributed.fsdp"]


def test_what_is_no_module_is_refused(tmp_path: Path) -> None:
    assert not attach(tmp_path, []).enabled
    (why,) = read_refusals(tmp_path)
    assert re.search(r"needs the model.*found list", why)


@pytest.mark.parametrize("variable", [STEPS, NOISE_SEED])
def test_a_number_that_is_none_is_refused(
    variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(OUT, str(tmp_path))
    monkeypatch.setenv(variable, "-1")
    assert not ttrace.attach(nn.Linear(1, 1)).enabled
    (why,) = read_refusals(tmp_path)
    assert f"{variable} must be a whole number, found '-1'" in why


def test_a_fault_while_attaching_is_said_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("no room")

    model, optimizer = small()
    monkeypatch.setattr("ttrace.capture.instruments.Update", fail)
    tracer = attach(tmp_path, model, optimizer)
    with tracer.step():
        model(torch.ones(2, 4)).sum().backward()
    assert not tracer.enabled
    assert hook_count(model, optimizer) == 0
    (why,) = read_refusals(tmp_path)
    assert "RuntimeError: no room" in why
    assert not list(tmp_path.glob("rank-*/*"))


def test_a_folder_that_cannot_be_written_leaves_the_run_alone(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert not attach(tmp_path / "file", nn.Linear(1, 1)).enabled
