"""What is predicted from a small trace is what the larger run records."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.fingerprints.traces import write_candidate
from benchmarks.fingerprints.values import Mesh
from tests.support.tracing import TrainConfig, trace_here, trace_in_pool
from ttrace.analysis.estimate import Scenario, estimate
from ttrace.core.estimate import Assumption, Estimate, LowHigh, Rates
from ttrace.errors import CannotCompare, UsageError
from ttrace.lab.functions import WorkerPool
from ttrace.trace.journal import END
from ttrace.trace.reader import Trace

RATES = Rates(
    device="cpu",
    capture="full",
    record_seconds=5e-5,
    byte_seconds=2e-9,
    read_seconds=2e-5,
    disk_rate=1e9,
)
DIM = 96  # chosen: no other dim of the demo has its size, and its matrices have fingerprints
PRINTS = "fingerprint"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("estimate")


@pytest.fixture(scope="module")
def small(folder: Path) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        return trace_here(TrainConfig(layers=3, dim=DIM), folder / "small", patch)


def records_of(path: Path) -> int:
    return sum(len(rank.records) for rank in Trace.open(path).ranks.values())


def bytes_of(path: Path) -> int:
    return sum(file.stat().st_size for file in path.glob("rank-*/*"))


def is_near(spread: LowHigh, measured: float, share: float = 0.05) -> bool:
    return all(abs(end / measured - 1) <= share for end in (spread.low, spread.high))


def about(found: Estimate) -> set[Assumption]:
    return {each.about for each in found.assumed}


def require_predicted(found: Estimate, large: Path, share: float = 0.001) -> None:
    assert found.records == LowHigh(records_of(large), records_of(large))
    assert is_near(found.candidate_bytes, bytes_of(large), share), (found, bytes_of(large))


@pytest.mark.parametrize("payload", [None, PRINTS])
def test_records_and_bytes_of_more_layers(
    payload: str | None, small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From a trace of values, also of fingerprints; one layer less would be noticed."""
    config = TrainConfig(layers=7, dim=DIM)
    large = trace_here(config, tmp_path / "large", monkeypatch, payload=payload)
    capture = payload or "full"
    found = estimate(small, Scenario(capture=capture, layers="7"), RATES)
    require_predicted(found, large)
    assert Assumption.LAYERS_ALIKE in about(found)
    other = estimate(small, Scenario(capture=capture, layers="6"), RATES)
    assert other.records.high < records_of(large)
    assert not is_near(other.candidate_bytes, bytes_of(large))


def test_a_trace_of_fingerprints_tells_the_bytes_of_values(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = TrainConfig(layers=3, dim=DIM)
    prints = trace_here(config, tmp_path / "prints", monkeypatch, payload=PRINTS)
    require_predicted(estimate(prints, Scenario(), RATES), small)
    require_predicted(estimate(small, Scenario(capture=PRINTS), RATES), prints)
    assert bytes_of(small) > 5 * bytes_of(prints)


def test_sizes_of_dims_are_told_by_their_size(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = trace_here(TrainConfig(layers=3, dim=2 * DIM), tmp_path / "large", monkeypatch)
    sizes = {DIM: 2 * DIM, DIM // 2: DIM, 2 * DIM: 4 * DIM}
    found = estimate(small, Scenario(sizes=sizes), RATES)
    require_predicted(found, large)
    left = next(each for each in found.assumed if each.about is Assumption.SIZES_LEFT)
    assert "32 (of " in left.what
    assert f" {DIM} (of " not in left.what


def test_steps_and_microbatches(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = TrainConfig(layers=3, dim=DIM, samples=16, microbatches=4, steps=2)
    large = trace_here(config, tmp_path / "large", monkeypatch)
    found = estimate(small, Scenario(steps=2, microbatches=4), RATES)
    require_predicted(found, large, share=0.005)
    assert {Assumption.STEPS_ALIKE, Assumption.MICROBATCHES_ALIKE} <= about(found)


def test_two_layers_that_differ_give_a_range_that_holds_the_truth(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small: Path
) -> None:
    two = trace_here(TrainConfig(layers=2, dim=DIM), tmp_path / "two", monkeypatch)
    found = estimate(two, Scenario(layers="3"), RATES)
    assert found.records.low <= records_of(small) <= found.records.high
    assert found.candidate_bytes.low <= bytes_of(small) * 1.001
    assert found.candidate_bytes.high >= bytes_of(small) * 0.999


def test_data_parallel_ranks(small: Path, tmp_path: Path, pool: WorkerPool) -> None:
    config = TrainConfig(layers=3, dim=DIM, dp=2, data_parallel="ddp")
    large = trace_in_pool(config, tmp_path / "large", pool)
    found = estimate(small, Scenario(ranks=2, same_batch=True), RATES)
    require_predicted(found, large)
    assert found.axes == {"dp": 2}
    assert is_near(found.reference_bytes, bytes_of(small))
    grown = estimate(small, Scenario(axes="dp=2"), RATES)
    assert grown.candidate_bytes.low > 1.1 * bytes_of(large)
    assert grown.reference_bytes.low > 1.1 * bytes_of(small)


def test_an_axis_splits_what_it_splits_in_the_trace(
    small: Path, tmp_path: Path, pool: WorkerPool
) -> None:
    """FSDP splits parameters, which a trace of one rank cannot tell."""
    two, four = (
        trace_in_pool(TrainConfig(layers=3, dim=DIM, dp=dp), tmp_path / str(dp), pool)
        for dp in (2, 4)
    )
    stated = Scenario(axes="dp=4", same_batch=True)
    found = estimate(two, stated, RATES)
    require_predicted(found, four)
    assert Assumption.SPLIT_SEEN in about(found)
    assert not is_near(estimate(small, stated, RATES).candidate_bytes, bytes_of(four), share=0.5)


def test_fingerprints_of_more_layers_and_ranks_of_two_axes(tmp_path: Path) -> None:
    """Made-up traces have no pages: what a run writes at once, they align one by one."""
    write_candidate(tmp_path / "small", 3, Mesh(tp=2, dp=1))
    count = write_candidate(tmp_path / "large", 4, Mesh(tp=4, dp=2))
    stated = Scenario(capture=PRINTS, layers="4", axes="tp=4,dp=2")
    found = estimate(tmp_path / "small", stated, RATES)
    assert found.records == LowHigh(count, count)
    assert is_near(found.candidate_bytes, bytes_of(tmp_path / "large"), share=0.02)


def test_an_axis_that_was_not_recorded_gives_a_range(small: Path) -> None:
    found = estimate(small, Scenario(axes="tp=4"), RATES)
    whole = estimate(small, Scenario(), RATES)
    assert Assumption.SPLIT_UNKNOWN in about(found)
    assert found.candidate_bytes.low < 1.2 * whole.candidate_bytes.low
    assert found.candidate_bytes.high > 3.9 * whole.candidate_bytes.high


def test_a_pipeline_divides_layers_and_gives_each_end_its_own(small: Path) -> None:
    whole = estimate(small, Scenario(layers="8"), RATES)
    found = estimate(small, Scenario(layers="8", axes="pp=4"), RATES)
    assert found.ranks == 4
    assert whole.records.low <= found.records.low <= whole.records.low + 3 * 2  # norms, on each
    share = found.rank_bytes.high / whole.candidate_bytes.high
    assert 1 / 4 < share < 1 / 2
    assert Assumption.PIPELINE in about(found)


def test_seconds_are_what_the_recorded_step_and_the_rates_say(small: Path) -> None:
    found = estimate(small, Scenario(), RATES)
    by_rates = RATES.recording_seconds(found.recorded)
    ends = sorted((by_rates, found.recorded_seconds))
    said = found.recording_seconds
    assert [said.low, said.high] == pytest.approx(ends)
    other = estimate(small, Scenario(capture=PRINTS), RATES)
    assert Assumption.OTHER_FORM in about(other)
    assert other.recording_seconds.high == pytest.approx(4 * other.recording_seconds.low)


def test_more_workers_take_less_time_and_more_memory(small: Path) -> None:
    stated = {"layers": "6", "sizes": {DIM: 64 * DIM}}
    one, eight = (estimate(small, Scenario(workers=n, **stated), RATES) for n in (1, 8))  # type: ignore[arg-type]
    assert eight.check_seconds.low < one.check_seconds.low
    assert eight.check_bytes.low > one.check_bytes.low


def test_more_lines_than_are_read_are_said(small: Path) -> None:
    found = estimate(small, Scenario(axes="dp=131072"), RATES)
    assert Assumption.TOO_MANY_LINES in about(found)
    assert Assumption.TOO_MANY_LINES not in about(estimate(small, Scenario(), RATES))


def test_rates_of_another_device_are_said(small: Path) -> None:
    assert Assumption.OTHER_DEVICE not in about(estimate(small, Scenario(), RATES))
    there = Rates(**{**{name: getattr(RATES, name) for name in RATES.__slots__}, "device": "cuda"})
    assert Assumption.OTHER_DEVICE in about(estimate(small, Scenario(), there))


@pytest.mark.parametrize(
    ("stated", "says"),
    [
        (Scenario(layers="blocks=3"), "the trace has layers with 3"),
        (Scenario(layers="0"), "--layers takes a number"),
        (Scenario(axes="tp"), "--axes takes sizes such as"),
        (Scenario(axes="tp=3", ranks=8), "a multiple of 3"),
        (Scenario(axes="dp=4", ranks=8), "--ranks 8 are not what dp 4 make"),
        (Scenario(axes="dp=10000000"), "more than 1,048,576 ranks"),
    ],
)
def test_what_cannot_be_is_refused(small: Path, stated: Scenario, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        estimate(small, stated, RATES)


def test_a_trace_without_an_end_is_refused(small: Path, tmp_path: Path) -> None:
    for file in small.glob("rank-00000/*"):
        there = tmp_path / "torn" / "rank-00000" / file.name
        there.parent.mkdir(parents=True, exist_ok=True)
        there.write_bytes(file.read_bytes())
    journal = tmp_path / "torn" / "rank-00000" / "journal.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    assert lines[-1].startswith(f'{{"{END}"'.encode())
    journal.write_bytes(b"".join(lines[:-1]))
    with pytest.raises(CannotCompare, match="is not whole"):
        estimate(tmp_path / "torn", Scenario(), RATES)
