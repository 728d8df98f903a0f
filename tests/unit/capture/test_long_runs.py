"""Long runs: steps spread over them, a bounded disk, flat memory, and going on after a kill."""

from __future__ import annotations

import gc
import os
import signal
import sys
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import pytest
import torch
from torch import nn

import ttrace
from tests.support import tiny_train
from tests.support.invoking import invoke
from ttrace.capture.settings import Settings
from ttrace.errors import UsageError
from ttrace.trace.progress import is_recorded, keep_common_steps
from ttrace.trace.reader import RankTrace, Trace
from ttrace.trace.spans import SpanReader

SCRIPT = Path(tiny_train.__file__)


def train(
    folder: Path, made: int, *, dies_in: int | None = None, rank: int = 0, **how: int
) -> None:
    """So many steps of a small model, or a death in the middle of one."""
    settings = Settings(folder=folder, **how)  # type: ignore[arg-type]
    torch.manual_seed(0)
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(8, 4)
    with mock.patch.dict(os.environ, settings.to_environment()):
        tracer = ttrace.attach(model, optimizer)
        for number in range(made):
            optimizer.param_groups[0]["lr"] = 0.1 / (1 + number)
            with tracer.step():
                optimizer.zero_grad()
                model(x).square().mean().backward()
                if number == dies_in:
                    os.kill(os.getpid(), signal.SIGKILL)
                optimizer.step()
        tracer.end()


def killed(folder: Path, made: int, dies_in: int, **how: int) -> None:
    """The same in a process that is killed there."""
    child = os.fork()
    if not child:
        try:
            train(folder, made, dies_in=dies_in, **how)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL


def recorded(folder: Path) -> RankTrace:
    """What rank 0 recorded, with every byte verified."""
    trace = Trace.open(folder)
    with SpanReader(folder) as spans:
        for record in trace.ranks[0].records:
            if record.location is not None:
                spans.finish(record)
    return trace.ranks[0]


class TestEvery:
    def test_nth_step_is_recorded(self, tmp_path: Path) -> None:
        train(tmp_path, 30, steps=3, every=10)
        found = recorded(tmp_path)
        assert found.steps == (0, 10, 20)
        assert {record.id.step for record in found.records} == {0, 10, 20}
        assert found.summary is not None
        assert (found.summary.steps, found.summary.asked) == (3, 3)

    def test_begins_after_those_that_are_let_pass(self, tmp_path: Path) -> None:
        train(tmp_path, 30, steps=2, every=10, skip=5)
        assert recorded(tmp_path).steps == (5, 15)

    def test_runs_are_compared_at_the_steps_that_they_share(self, tmp_path: Path) -> None:
        for name in ("reference", "candidate"):
            train(tmp_path / name, 12, steps=3, every=5)
        result = ttrace.check(tmp_path / "reference", tmp_path / "candidate")
        assert result.exit_code == 0
        assert {tensor.id.step for tensor in result.tensors} == {0, 5, 10}

    @pytest.mark.flow
    def test_by_the_command_line(self, tmp_path: Path) -> None:
        words = (sys.executable, SCRIPT, "--light", "--steps", 6)
        outcome = invoke("run", "--out", tmp_path / "a", "--steps", 2, "--every", 4, "--", *words)
        outcome.require(0, "tensors from 1 of 1 rank")
        assert recorded(tmp_path / "a").steps == (0, 4)


class TestMaxBytes:
    @pytest.fixture
    def step_bytes(self, tmp_path: Path) -> int:
        train(tmp_path / "one", 1)
        train(tmp_path / "two", 2, steps=2)
        one, two = (size_of(tmp_path / name) for name in ("one", "two"))
        return two - one

    def test_bounds_the_disk_and_ends_clearly(self, tmp_path: Path, step_bytes: int) -> None:
        train(tmp_path / "one-step", 1)
        limit = size_of(tmp_path / "one-step") + 20 * step_bytes + (1 << 18)
        train(tmp_path / "bounded", 200, steps=200, max_bytes=limit)
        assert size_of(tmp_path / "bounded") <= limit
        found = recorded(tmp_path / "bounded")
        assert found.summary is not None
        assert 5 < found.summary.steps < 40
        assert found.summary.asked == found.summary.steps
        assert found.summary.is_full
        assert is_recorded(tmp_path / "bounded", steps=200)
        assert not found.summary.faults
        (told,) = found.summary.notes
        made = found.summary.steps
        assert told.startswith(f"recording ended after {made} of 200 steps: the next might not fit")

    def test_too_small_for_one_step_is_a_fault_and_training_goes_on(self, tmp_path: Path) -> None:
        train(tmp_path / "tiny", 3, steps=3, max_bytes=1 << 18)
        found = recorded(tmp_path / "tiny")
        assert found.summary is not None
        assert any("--max-bytes leaves 262,144" in fault for fault in found.summary.faults)

    @pytest.mark.flow
    @pytest.mark.parametrize(
        ("size", "is_one"), [("500MB", True), ("1.5gb", True), ("7", True), ("much", False)]
    )
    def test_is_written_as_people_write_sizes(
        self, size: str, *, is_one: bool, tmp_path: Path
    ) -> None:
        words = (sys.executable, SCRIPT, "--light")
        outcome = invoke("run", "--out", tmp_path / "a", "--max-bytes", size, "--", *words)
        assert ("is no size" in outcome.err) != is_one


class TestResume:
    @pytest.mark.flow
    def test_keeps_the_steps_before_the_kill(self, tmp_path: Path) -> None:
        killed(tmp_path, 9, dies_in=2, steps=4)
        before = recorded(tmp_path)
        assert (before.steps, before.summary) == ((0, 1), None)
        train(tmp_path, 9, steps=4, resume=True)
        found = recorded(tmp_path)
        assert found.steps == (0, 1, 2, 3)
        assert found.summary is not None
        assert found.summary.steps == 4
        whole = [record for record in before.records if record.id.step < 2]
        assert found.records[: len(whole)] == tuple(whole)

    @pytest.mark.flow
    def test_goes_on_after_any_number_of_kills(self, tmp_path: Path) -> None:
        for _ in range(4):
            killed(tmp_path, 9, dies_in=1, steps=6, resume=True)
        assert recorded(tmp_path).steps == (0, 1, 2, 3)

    @pytest.mark.flow
    def test_that_fails_at_once_takes_nothing_away(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        killed(tmp_path, 9, dies_in=0, steps=4)

        def fails(*_: object) -> None:
            raise OSError("the device is gone")

        with monkeypatch.context() as patch:
            patch.setattr(os, "ftruncate", fails)
            train(tmp_path, 1, steps=4, resume=True)
        assert recorded(tmp_path).summary is None

    def test_of_what_is_whole_is_refused(self, tmp_path: Path) -> None:
        train(tmp_path, 1)
        with pytest.raises(UsageError, match="is whole, its run came to the end"):
            keep_common_steps(tmp_path)

    @pytest.mark.flow
    def test_keeps_what_all_ranks_have(self, tmp_path: Path) -> None:
        """One rank was killed a step later than the other."""
        for rank, dies_in in ((0, 3), (1, 2)):
            with ranks_of(rank, 2):
                killed(tmp_path, 9, dies_in=dies_in, steps=5)
        assert [trace.steps for trace in Trace.open(tmp_path).ranks.values()] == [(0, 1, 2), (0, 1)]
        assert keep_common_steps(tmp_path) == (0, 1)
        assert [trace.steps for trace in Trace.open(tmp_path).ranks.values()] == [(0, 1), (0, 1)]

    @pytest.mark.flow
    def test_by_the_command_line(self, tmp_path: Path) -> None:
        run = ("run", "--out", tmp_path / "a", "--steps", 3)
        script = tmp_path / "train.py"
        script.write_text(DIES_ONCE.format(mark=tmp_path / "died"))
        invoke(*run, "--", sys.executable, script).require(2, "was killed by SIGKILL")
        assert recorded(tmp_path / "a").steps == (0,)
        invoke(*run, "--", sys.executable, script).require(3, "traces are never overwritten")
        invoke(*run, "--resume", "--", sys.executable, script).require(0, "from 1 of 1 rank")
        assert recorded(tmp_path / "a").steps == (0, 1, 2)


def test_steps_that_only_some_ranks_had_room_for_are_left_out(tmp_path: Path) -> None:
    for rank, steps in ((0, 2), (1, 3)):
        with ranks_of(rank, 2):
            train(tmp_path, steps, steps=steps)
    trace = Trace.open(tmp_path)
    assert trace.steps == (0, 1)
    told = "some ranks recorded more steps than others, and 1 are left out"
    assert all(told in rank.notes for rank in trace.ranks.values())


@pytest.mark.flow
@pytest.mark.parametrize("made", [600, pytest.param(10_000, marks=pytest.mark.flow)])
def test_memory_stays_flat(tmp_path: Path, made: int) -> None:
    settings = Settings(folder=tmp_path, steps=made, every=made // 10)
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(8, 4)
    sizes = []
    with mock.patch.dict(os.environ, settings.to_environment()):
        tracer = ttrace.attach(model, optimizer)
        tracemalloc.start()
        try:
            for number in range(made):
                optimizer.param_groups[0]["lr"] = 0.1 / (1 + number)
                with tracer.step():
                    optimizer.zero_grad()
                    model(x).square().mean().backward()
                    optimizer.step()
                if number % (made // 10) == made // 20:
                    gc.collect()
                    sizes.append(tracemalloc.get_traced_memory()[0])
        finally:
            tracemalloc.stop()
    growth = (sizes[-1] - sizes[1]) / (len(sizes) - 2)  # by one recorded step and what lies between
    assert growth < 20_000, sizes


DIES_ONCE = """
import os, signal, torch, ttrace
from pathlib import Path
torch.manual_seed(0)
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
tracer = ttrace.attach(model, optimizer)
mark = Path("{mark}")
for number in range(5):
    with tracer.step():
        optimizer.zero_grad()
        model(torch.ones(2, 4)).square().mean().backward()
        if number == 1 and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.step()
"""


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


@contextmanager
def ranks_of(rank: int, ranks: int) -> Iterator[None]:
    """As if this were one of several ranks."""
    from ttrace.adapters.base import Coordinates
    from ttrace.adapters.native.adapter import NativeAdapter

    told = Coordinates(rank=rank, world_size=ranks, axes={}, batch=None)
    with mock.patch.object(NativeAdapter, "coordinates", return_value=told):
        yield
