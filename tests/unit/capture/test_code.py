"""Which lines of a program a trace keeps: those that call a module, and what a module runs."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_

from tests.support.capturing import attach
from ttrace.capture.code import is_own
from ttrace.core.record import CLIPPING, UPDATE, Code
from ttrace.trace.reader import Trace

HERE = "tests/unit/capture/test_code.py"


class Gate(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(4, 8)
        self.down = nn.Sequential(nn.ReLU(), nn.Linear(8, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        opened = self.up(x)
        return self.down(opened)


def test_files_of_installed_packages_are_not_the_users() -> None:
    assert is_own(__file__)
    assert not is_own(torch.__file__)
    assert not is_own(str(Path(pytest.__file__)))
    assert not is_own("<string>")
    assert not is_own(str(Path("src/ttrace/capture/hooks.py").resolve()))
    assert is_own(str(Path("src/ttrace/demo/model.py").resolve()))


@pytest.fixture
def code(tmp_path: Path) -> Code:
    model = Gate()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with attach(tmp_path, model, optimizer).step():
        model(torch.ones(2, 4)).sum().backward()
        clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    summary = Trace.open(tmp_path).ranks[0].summary
    assert summary is not None
    return summary.code


def test_call_of_a_module_is_a_line_of_the_users_class(code: Code) -> None:
    (place,) = code.calls_of("up")
    assert place.function == "Gate.forward"
    assert place.is_own
    assert place.file == HERE
    assert place.lines[place.line - place.first] == "    opened = self.up(x)"
    assert place.lines[0] == "def forward(self, x: torch.Tensor) -> torch.Tensor:"


def test_call_inside_a_framework_is_the_nearest_line_of_the_users(code: Code) -> None:
    """nn.Sequential calls it, and is called by the user's class."""
    (place,) = code.calls_of("down.1")
    assert place.lines[place.line - place.first] == "    return self.down(opened)"


def test_what_a_module_runs_is_kept(code: Code) -> None:
    (own,) = code.forward_of("")
    assert own.lines[0].startswith("def forward(self, x")
    assert own.is_own
    (frameworks,) = code.forward_of("up")
    assert not frameworks.is_own
    assert frameworks.function == "Linear.forward"


def test_lines_of_the_loop_are_kept(code: Code) -> None:
    for name, line in (
        (CLIPPING, "clip_grad_norm_("),
        (UPDATE, "optimizer.step()"),
        ("", "model("),
    ):
        place = code.calls_of(name)[0]
        assert line in place.lines[place.line - place.first]
        assert place.function == "code"


def test_module_whose_forward_was_replaced_shows_what_runs(tmp_path: Path) -> None:
    model = Gate()
    model.up.forward = lambda x: torch.nn.functional.pad(x, (0, 4))  # type: ignore[assignment,method-assign]
    with attach(tmp_path, model).step():
        model(torch.ones(2, 4)).sum().backward()
    summary = Trace.open(tmp_path).ranks[0].summary
    assert summary is not None
    (place,) = summary.code.forward_of("up")
    assert "functional.pad" in place.lines[0]


def test_program_without_source_is_traced_without_code(tmp_path: Path) -> None:
    made: dict[str, object] = {}
    exec("class Bare(nn.Module):\n def forward(self, x): return x * 2", {"nn": nn}, made)
    model = nn.Sequential(made["Bare"](), nn.Linear(2, 2))  # type: ignore[operator]
    with attach(tmp_path, model).step():
        model(torch.ones(2, 2)).sum().backward()
    summary = Trace.open(tmp_path).ranks[0].summary
    assert summary is not None
    assert summary.faults == ()
    assert summary.code.forward_of("0") == ()


class Tidy(nn.Module):
    """Lets go of what it does not need, between calls of its modules."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.is_kept: list[bool] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        large = torch.ones(100)
        watched = weakref.ref(large)
        y: torch.Tensor = self.first(x)
        del large
        self.is_kept.append(watched() is not None)
        z: torch.Tensor = self.second(y)
        return z


def put_on(module: nn.Module) -> weakref.ref[torch.Tensor]:
    """A forward that holds a tensor."""
    noted = torch.ones(3)
    module.forward = lambda y: y + noted.sum()
    return weakref.ref(noted)


def test_nothing_that_the_program_let_go_of_is_kept(tmp_path: Path) -> None:
    """Neither by a frame of a module, nor by one of the loop, nor by a forward that was put on."""
    model, batch = Tidy(), torch.ones(2, 4)
    refs = (put_on(model.second), weakref.ref(batch), weakref.ref(model))
    watched: list[Callable[[], object]] = list(refs)
    with attach(tmp_path, model).step():
        model(batch).sum().backward()
    assert model.is_kept == [False]
    del batch, model
    gc.collect()
    assert [each() for each in watched] == [None, None, None]
