"""Engines measure the same numbers wherever they run, and other packages can bring one."""

from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import EntryPoint

import pytest

import ttrace
from tests.support import tiny_train
from ttrace.analysis import engine as engines
from ttrace.analysis.compare import Measured, Unit
from ttrace.analysis.engine import Engine, Processes, Serial, find_engine
from ttrace.core.results import CheckResult
from ttrace.errors import UsageError
from ttrace.trace.spans import SpanReader


class Kept:
    """Another package's engine: it measures as one process does, and keeps what came of it."""

    def __init__(self, inner: Engine | None = None) -> None:
        self.inner = inner or Serial()
        self.units: list[Unit] = []
        self.measured: list[Measured] = []

    def measure(
        self, reference: SpanReader, candidate: SpanReader, units: Sequence[Unit]
    ) -> Iterator[Measured]:
        for unit, found in zip(units, self.inner.measure(reference, candidate, units), strict=True):
            self.units.append(unit)
            self.measured.append(found)
            yield found


class Lazy:
    """A wrong engine: it leaves the last unit out."""

    def measure(
        self, reference: SpanReader, candidate: SpanReader, units: Sequence[Unit]
    ) -> Iterator[Measured]:
        return Serial().measure(reference, candidate, units[:-1])


@pytest.fixture(scope="module")
def compare(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Engine | None], CheckResult]:
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


def test_processes_measure_bitwise_what_one_measures(
    compare: Callable[[Engine | None], CheckResult],
) -> None:
    alone, shared = Kept(Serial()), Kept(Processes(2))
    results = [compare(alone), compare(shared)]
    assert len(alone.units) > 2 * 20  # of the perturbed reference and of the candidate
    assert [unit.id for unit in shared.units] == [unit.id for unit in alone.units]
    assert [repr(found) for found in shared.measured] == [repr(found) for found in alone.measured]
    assert results[0].to_dict() == results[1].to_dict()


def test_measured_of_another_candidate_differs(
    compare: Callable[[Engine | None], CheckResult],
) -> None:
    """The companion of the test above: its `repr` shows a difference where there is one."""
    kept = Kept()
    compare(kept)
    noise, candidate = kept.measured[: len(kept.units) // 2], kept.measured[len(kept.units) // 2 :]
    assert list(map(repr, noise)) != list(map(repr, candidate))


def test_an_engine_of_another_package_measures_a_check(
    compare: Callable[[Engine | None], CheckResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    named(monkeypatch, EntryPoint("kept", f"{__name__}:Kept", engines.ENGINES))
    engine = find_engine("kept")
    assert isinstance(engine, Kept)
    assert compare(engine).to_dict() == compare(None).to_dict()
    assert engine.measured


def test_an_engine_that_leaves_a_unit_out_is_not_believed(
    compare: Callable[[Engine | None], CheckResult],
) -> None:
    with pytest.raises(ValueError, match="shorter"):
        compare(Lazy())


def test_an_unknown_name_is_answered_with_the_known_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    named(
        monkeypatch,
        EntryPoint("ray", "absent_package:Ray", engines.ENGINES),
        EntryPoint("kept", f"{__name__}:Kept", engines.ENGINES),
        EntryPoint("other", "absent_package:Form", "ttrace.report_forms"),
    )
    with pytest.raises(UsageError, match=r"no engine is called 'sray'.*: kept, ray$"):
        find_engine("sray")


def test_an_unknown_name_where_nothing_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    named(monkeypatch)
    with pytest.raises(UsageError, match="none is installed"):
        find_engine("ray")


def test_without_a_name_workers_decide() -> None:
    assert isinstance(find_engine(), Serial)
    assert isinstance(find_engine(workers=2), Processes)
    with pytest.raises(UsageError, match="at least one worker, found 0"):
        find_engine(workers=0)
