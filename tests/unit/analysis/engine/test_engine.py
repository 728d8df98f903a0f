"""Engines are found by name, other packages can bring one, and none is believed blindly."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import TypeVar

import pytest

import ttrace
from tests.support import tiny_train
from tests.support.jobs import Doubled
from ttrace.analysis import engine as engines
from ttrace.analysis import measuring
from ttrace.analysis.engine import Engine, Job, Processes, Serial, Workplace, find_engine, run_alone
from ttrace.core.results import CheckResult
from ttrace.errors import UsageError
from ttrace.trace.spans import SpanReader

T = TypeVar("T")


class Kept(Engine):
    """Another package's engine: it works as one process does, and keeps the names of jobs."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.calls = 0

    def map(self, jobs: Sequence[Job[T]], here: Workplace) -> Iterator[tuple[int, T]]:
        self.calls += 1
        self.names += [job.name for job in jobs]
        return Serial().map(jobs, here)


class Lazy(Engine):
    """A wrong engine: it leaves the last job out."""

    def map(self, jobs: Sequence[Job[T]], here: Workplace) -> Iterator[tuple[int, T]]:
        return Serial().map(jobs[:-1], here)


class Backwards(Engine):
    """Jobs may end in any order."""

    def map(self, jobs: Sequence[Job[T]], here: Workplace) -> Iterator[tuple[int, T]]:
        for number, job in reversed(list(enumerate(jobs))):
            yield number, run_alone(job)


Check = Callable[[Engine | None], CheckResult]


@pytest.fixture(scope="module")
def compare(tmp_path_factory: pytest.TempPathFactory) -> Check:
    """One small comparison that fails, by any engine."""
    folder = tmp_path_factory.mktemp("traces")
    reference = tiny_train.record(folder / "reference")
    candidate = tiny_train.record(folder / "candidate", "--scale", "1.001")
    perturbed = tiny_train.record(folder / "perturbed", noise_seed=1)
    return lambda engine: ttrace.check(reference, candidate, perturbed=[perturbed], engine=engine)


def named(monkeypatch: pytest.MonkeyPatch, *points: EntryPoint) -> None:
    """Let these be all the entry points that are installed."""
    monkeypatch.setattr(
        engines, "entry_points", lambda group: [p for p in points if p.group == group]
    )


def test_an_engine_of_another_package_works_for_a_check(
    compare: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    named(monkeypatch, EntryPoint("kept", f"{__name__}:Kept", engines.ENGINES))
    engine = find_engine("kept")
    assert isinstance(engine, Kept)
    result = compare(engine)
    assert result.to_dict() == compare(None).to_dict()
    suspects = [str(detail.id) for detail in result.details]
    assert suspects
    assert len(engine.names) > 2 * 20  # of the perturbed reference and of the candidate
    assert engine.names[-len(suspects) :] == suspects  # which are looked at closely by it, too


def test_small_comparisons_are_shared_out_together(
    compare: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the end of each call workers wait for the last of them."""
    together, apart = Kept(), Kept()
    result = compare(together)
    monkeypatch.setattr(measuring, "_GROUP_COST", 1)
    assert compare(apart).to_dict() == result.to_dict()
    assert together.names == apart.names
    assert (together.calls, apart.calls) == (2, 3)  # of which one is of suspects


def test_jobs_may_end_in_any_order(compare: Check) -> None:
    assert compare(Backwards()).to_dict() == compare(None).to_dict()


def test_an_engine_that_leaves_a_job_out_is_not_believed(compare: Check) -> None:
    with pytest.raises(UsageError, match=r"Lazy gave \d+ results of \d+ jobs, none of step0/"):
        compare(Lazy())


def test_an_unknown_name_is_answered_with_the_known_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    named(
        monkeypatch,
        EntryPoint("kept", f"{__name__}:Kept", engines.ENGINES),
        EntryPoint("other", "absent_package:Form", "ttrace.report_forms"),
    )
    with pytest.raises(UsageError, match=r"'sray'; there are kept, processes, ray, serial, and"):
        find_engine("sray")


def test_without_a_name_workers_decide() -> None:
    assert find_engine() is None  # a check chooses by what there is to read
    assert isinstance(find_engine(workers=1), Serial)
    two = find_engine(workers=2)
    assert isinstance(two, Processes)
    assert two.workers == 2
    with pytest.raises(UsageError, match="at least one worker, found 0"):
        find_engine(workers=0)


def test_names_of_our_own_need_no_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    named(monkeypatch)
    monkeypatch.setattr(engines, "room_for_workers", lambda: 3)
    assert isinstance(find_engine("serial"), Serial)
    found = find_engine("processes")
    assert isinstance(found, Processes)
    assert found.workers == 3


@pytest.mark.parametrize(
    ("name", "workers", "words"),
    [
        ("serial", 2, "the engine serial is one process, found 2"),
        ("processes:10.0.0.1", None, "processes are on this machine"),
        ("kept", 2, "the engine kept takes neither --workers nor an address"),
        ("kept:elsewhere", None, "the engine kept takes neither"),
    ],
)
def test_what_an_engine_cannot_take_is_refused(
    name: str, workers: int | None, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    named(monkeypatch, EntryPoint("kept", f"{__name__}:Kept", engines.ENGINES))
    with pytest.raises(UsageError, match=words):
        find_engine(name, workers)


def test_without_ray_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "ttrace.analysis.engine.on_ray", raising=False)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UsageError, match=r"needs the package ray.*pip install 'ttrace\[ray\]'"):
        find_engine("ray")


class TestWorkplace:
    def test_a_trace_is_opened_once_and_closed_at_the_end(self, tmp_path: Path) -> None:
        opened: list[SpanReader] = []

        def keep(*readers: SpanReader) -> int:
            opened.extend(readers)
            return len(opened)

        paths = [tmp_path / str(number) for number in range(3)]
        with Workplace() as place:
            assert place.instrument(keep, paths[0], paths[1]) == 2
            assert place.instrument(keep, paths[0], paths[1]) == 2  # the same instrument
            assert place.instrument(keep, paths[0], paths[2]) == 4
            assert opened[0] is opened[2]

    def test_what_it_was_given_is_used(self, tmp_path: Path) -> None:
        with SpanReader(tmp_path) as reader, Workplace(reader) as place:
            assert place.instrument(lambda found: found, tmp_path) is reader

    def test_many_traces_are_not_all_open_at_once(self, tmp_path: Path) -> None:
        with Workplace() as place:
            for number in range(50):
                place.instrument(lambda *found: found, tmp_path / "r", tmp_path / str(number))
                assert len(place._opened) <= 4

    def test_it_runs_jobs(self) -> None:
        assert run_alone(Doubled(number=4))[0] == 8
