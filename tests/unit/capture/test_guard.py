"""A fault of the tracer stays with the tracer."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ttrace
from tests.support.capturing import attach, hook_count, read
from ttrace.adapters.native.adapter import NativeAdapter
from ttrace.capture.backward import BackwardPasses
from ttrace.capture.calls import Calls
from ttrace.capture.clipping import Clipping
from ttrace.capture.guard import Guard, Hook
from ttrace.capture.recorder import Recorder
from ttrace.capture.settings import OUT
from ttrace.capture.update import Update
from ttrace.trace import writer
from ttrace.trace.progress import read_refusals


class Run:
    """Two steps of a small model, and what they leave of it."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 1))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)

    def train(self, tracer: ttrace.Tracer) -> list[Tensor]:
        for _ in range(2):
            with tracer.step():
                self.optimizer.zero_grad()
                tracer.loss(self.model(torch.ones(2, 4)).sum()).backward()
                nn.utils.clip_grad_norm_(self.model.parameters(), 0.1)
                self.optimizer.step()
        return [*map(torch.clone, self.model.parameters()), torch.get_rng_state()]


def untraced() -> list[Tensor]:
    return Run().train(ttrace.attach(nn.Identity()))


def raises_once(method: Callable[..., Any], error: Exception) -> Callable[..., Any]:
    left = [error]

    def call(*args: Any, **kwargs: Any) -> Any:
        if left:
            raise left.pop()
        return method(*args, **kwargs)

    return call


STEP_OFF = [
    (Calls, "enter"),
    (Calls, "leave"),
    (NativeAdapter, "is_rehearsal"),
    (BackwardPasses, "name_loss"),
    (BackwardPasses, "around"),
    (Clipping, "before"),
    (Update, "_before_update"),
    (Update, "_after_update"),
]
RUN_OFF = [(Update, "begin"), (Update, "watching"), (Update, "end"), (Recorder, "end_step")]


class TestFault:
    @pytest.mark.parametrize("place", STEP_OFF, ids=lambda place: place[1])
    def test_the_rest_of_the_step_is_not_recorded_and_the_next_one_is(
        self,
        place: tuple[type, str],
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        monkeypatch.setattr(*place, raises_once(getattr(*place), RuntimeError("planted")))
        run = Run()
        numbers = run.train(attach(tmp_path, run.model, run.optimizer, steps=2))
        assert all(map(torch.equal, numbers, untraced()))
        trace = read(tmp_path)
        (fault,) = trace.summary.faults
        assert "RuntimeError: planted" in fault
        (line,) = caplog.messages
        assert line.startswith("ttrace: records nothing more of this step after a fault in ")
        assert line.endswith("RuntimeError: planted; training goes on")
        assert trace.summary.steps == 2
        assert "0:param_after.weight" not in trace.ids
        assert trace.records("step1/0:param_after.weight")
        assert hook_count(run.model, run.optimizer) == 0

    @pytest.mark.parametrize("place", RUN_OFF, ids=lambda place: place[1])
    def test_a_step_that_cannot_be_begun_or_ended_is_the_last(
        self,
        place: tuple[type, str],
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        monkeypatch.setattr(*place, raises_once(getattr(*place), MemoryError("planted")))
        run = Run()
        numbers = run.train(attach(tmp_path, run.model, run.optimizer, steps=2))
        assert all(map(torch.equal, numbers, untraced()))
        trace = read(tmp_path)
        assert "MemoryError: planted" in trace.summary.faults[0]
        assert trace.summary.steps == 0
        (line,) = caplog.messages
        assert line.startswith("ttrace: records nothing more after a fault in the ")
        assert hook_count(run.model, run.optimizer) == 0

    def test_its_message_is_one_short_line(self, caplog: pytest.LogCaptureFixture) -> None:
        guard = Guard()
        guard.harmed("a hook", ValueError("a\nb\n" + 1000 * "c"))
        guard.harmed("a hook", ValueError("again"))
        (line,) = caplog.messages
        assert "ValueError: a b ccc" in line
        assert "\n" not in line
        assert len(line) < 500
        assert [fault[:17] for fault in guard.faults()] == ["a hook: ValueErro"] * 2

    def test_an_error_that_cannot_be_told_is_none_of_the_run_s(self) -> None:
        class Odd(Exception):
            def __str__(self) -> str:
                raise ValueError("odd")

        guard = Guard()
        guard.harmed("a hook", Odd())
        assert guard.faults() == ("and 1 more",)

    def test_who_debugs_us_gets_the_traceback(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.DEBUG)
        Guard().harmed("a hook", ValueError("planted"))
        assert caplog.records[1].exc_info is not None


class TestTheirs:
    @pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
    def test_what_ends_a_process_is_no_fault(self, error: type[BaseException]) -> None:
        def stop() -> None:
            raise error

        with pytest.raises(error):
            Hook(Guard(), "a hook", stop)()

    def test_an_exception_of_the_run_passes_as_it_is(self, tmp_path: Path) -> None:
        class Mine(Exception):
            pass

        mine = Mine("no")
        model, tracer = Run().model, None

        def refuse(*_: Any) -> None:
            raise mine

        model[0].register_forward_pre_hook(refuse)
        tracer = attach(tmp_path, model)
        with pytest.raises(Mine) as caught, tracer.step():
            model(torch.ones(2, 4))
        assert caught.value is mine
        assert (mine.__cause__, mine.__context__) == (None, None)


class TestAttach:
    @pytest.fixture
    def full(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(*_: Any, **__: Any) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(writer, "_write_manifest", fail)

    @pytest.mark.usefixtures("full")
    def test_on_a_full_disk_it_warns_and_stays_off(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        run = Run()
        tracer = attach(tmp_path, run.model, run.optimizer)
        assert not tracer.enabled
        assert all(map(torch.equal, run.train(tracer), untraced()))
        (line,) = caplog.messages
        assert "No space left on device; training goes on" in line
        assert read_refusals(tmp_path)
        assert not list(tmp_path.glob("rank-*/*"))

    def test_on_a_disk_that_takes_nothing_it_warns_and_stays_off(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(*_: Any, **__: Any) -> None:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))

        monkeypatch.setattr(Path, "mkdir", fail)
        run = Run()
        tracer = attach(tmp_path / "trace", run.model, run.optimizer)
        assert all(map(torch.equal, run.train(tracer), untraced()))
        (line,) = caplog.messages
        assert "Read-only file system; training goes on" in line
        assert hook_count(run.model, run.optimizer) == 0

    @pytest.mark.usefixtures("full")
    def test_what_is_attached_after_that_is_off_as_well(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A tracer of a part of the run would be one that nobody steps."""
        run = Run()
        monkeypatch.setenv(OUT, str(tmp_path))
        assert not ttrace.attach(run.model).enabled
        monkeypatch.undo()
        monkeypatch.setenv(OUT, str(tmp_path))
        assert not ttrace.attach(nn.Linear(1, 1)).enabled
