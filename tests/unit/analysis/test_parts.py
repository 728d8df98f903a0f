"""Parts of a check: numbers survive, shares are even, and what is of another check is refused."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ttrace
from tests.support import tiny_train
from tests.support.jobs import Doubled
from ttrace.analysis.compare import Measured
from ttrace.analysis.compare.measured import Disagreement
from ttrace.analysis.measuring import measure_part
from ttrace.analysis.part_file import (
    PartComparison,
    PartIdentity,
    StaticWorker,
    read_parts,
    write_part,
)
from ttrace.analysis.parts import share_of
from ttrace.core.ids import TensorId
from ttrace.core.layout import Layout
from ttrace.core.statistics import Slice, Statistics
from ttrace.errors import UsageError
from ttrace.trace.reader import Trace
from ttrace.trace.sealed import seal

ONE = StaticWorker(number=1, count=1)
IDENTITY = PartIdentity(reference="0" * 16, candidate="1" * 16, manner="2" * 16)
magnitudes = st.just(math.nan) | st.floats(min_value=0.0, allow_infinity=True)
anything = st.floats(allow_nan=True, allow_infinity=True)
counts = st.integers(0, 2**63 - 1)


@st.composite
def statistics(draw: st.DrawFn) -> Statistics:
    place = st.lists(st.integers(0, 99), max_size=3).map(tuple)
    return Statistics(
        count=draw(counts),
        error_norm=draw(magnitudes),
        reference_norm=draw(magnitudes),
        candidate_norm=draw(magnitudes),
        dot=draw(anything),
        max_error=draw(magnitudes),
        error_sum=draw(anything),
        nonfinite_reference=draw(counts),
        nonfinite_candidate=draw(counts),
        unequal=draw(counts),
        peak=draw(magnitudes),
        max_ulp=draw(st.none() | counts),
        worst_element=draw(place),
        slices=(Slice(dims=(0,), index=draw(place), error_norm=draw(magnitudes)),),
        cells=draw(place),
    )


def one(*found: Measured) -> PartComparison:
    return PartComparison(
        what="candidate",
        identity=IDENTITY,
        measured=tuple(enumerate(found)),
        verified=(len(found),),
    )


@settings(deadline=None)
@given(statistics(), statistics(), st.booleans())
def test_every_number_survives_to_the_last_bit(
    first: Statistics, second: Statistics, flag: bool
) -> None:
    layout = Layout.full((4, 6)).shard(1, 1, 2)
    apart = Disagreement(layout=layout, ranks=(1, 3), recompute=flag, statistics=second)
    found = Measured(
        statistics=first, disagreements=(apart,), moved=3, as_terms=flag, cells_fit=not flag
    )
    with TemporaryDirectory() as name:
        write_part(Path(name), ONE, [one(found)])
        ((_, part),) = read_parts(Path(name))
    assert repr(part.comparisons[0].measured) == repr(((0, found),))
    assert part.comparisons[0].verified == (1,)


@given(st.lists(st.integers(1, 1000), max_size=40), st.integers(1, 9))
def test_shares_are_even_and_leave_nothing_out(costs: list[int], count: int) -> None:
    jobs = [Doubled(number=number, cost=cost) for number, cost in enumerate(costs)]
    shares = [share_of(jobs, StaticWorker(number=n + 1, count=count)) for n in range(count)]
    assert sorted(number for share in shares for number in share) == list(range(len(jobs)))
    loads = [sum(costs[number] for number in share) for share in shares]
    assert max(loads) - min(loads) <= max(costs, default=0)


@pytest.mark.parametrize("text", ["0/3", "4/3", "1/0", "1/70000"])
def test_a_worker_that_cannot_be_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="they count from 1, expected 1/"):
        StaticWorker.parse(text)


@pytest.mark.parametrize("text", ["", "3", "1 of 3", "-1/3", "1/3/4", "\u0661/\u0663"])
def test_what_is_no_worker_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="expected a number and how many, as 2/16"):
        StaticWorker.parse(text)


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("traces")
    tiny_train.record(folder / "reference")
    tiny_train.record(folder / "perturbed", noise_seed=1)
    tiny_train.record(folder / "candidate", "--scale", "1.5")
    tiny_train.record(folder / "other", "--scale", "1.25")
    for number in (1, 2):
        measured(folder, folder / "parts", number)
    return folder


def arguments(traces: Path, candidate: str = "candidate", noise: bool = True) -> dict[str, Any]:
    perturbed = [traces / "perturbed"] if noise else []
    return {
        "reference": traces / "reference",
        "candidate": traces / candidate,
        "perturbed": perturbed,
    }


def measured(traces: Path, parts: Path, number: int, count: int = 2, **how: Any) -> Path:
    worker = StaticWorker(number=number, count=count)
    return measure_part(**arguments(traces, **how), worker=worker, parts=parts)


@pytest.fixture
def parts(traces: Path, tmp_path: Path) -> Path:
    """Of a check that two workers share."""
    return Path(shutil.copytree(traces / "parts", tmp_path / "parts"))


def refused(traces: Path, parts: Path, **how: Any) -> str:
    with pytest.raises(UsageError) as caught:
        ttrace.check(**arguments(traces, **how), parts=parts)
    return str(caught.value)


def test_merging_reads_no_tensor_but_suspects(traces: Path, parts: Path, tmp_path: Path) -> None:
    """Bytes that were changed after they were measured are not read again."""
    copied = Path(shutil.copytree(traces, tmp_path / "traces"))
    records = Trace.open(copied / "perturbed").by_id()[TensorId.parse("step0/first:output.0")]
    where = records[0].location
    assert where is not None
    with (copied / "perturbed" / "rank-00000" / where.segment).open("r+b") as file:
        file.seek(where.offset)
        file.write(bytes(where.size_bytes))
    with pytest.raises(ttrace.CorruptTrace):
        ttrace.check(**arguments(copied))
    assert ttrace.check(**arguments(copied), parts=parts).failures


def test_missing_parts_are_named_with_what_to_run(traces: Path, parts: Path) -> None:
    (parts / "part-2-of-2.json").unlink()
    said = refused(traces, parts)
    assert "lacks part-2-of-2.json" in said
    assert f"--worker 2/2 --parts {parts}" in said


def test_a_folder_without_parts_is_refused(traces: Path, tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "absent"):
        assert "holds no part of a check, expected part-1-of-N.json" in refused(traces, folder)


def test_parts_of_another_number_of_workers_are_refused(traces: Path, parts: Path) -> None:
    measured(traces, parts, 1, count=3)
    said = refused(traces, parts)
    assert "parts of several checks (part-1-of-2.json, part-1-of-3.json)" in said


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"candidate": "other"}, "was measured of another trace as candidate"),
        ({"noise": False}, "has noise 1 of 1, candidate"),
    ],
)
def test_a_part_of_another_check_is_named(
    how: dict[str, Any], words: str, traces: Path, parts: Path
) -> None:
    other = measured(traces, parts, 2, **how)
    if "noise" in how:  # the check has more than its part
        words = "has candidate, and not once what this check needs: noise 1 of 1"
    said = refused(traces, parts)
    assert said.startswith(f"{other} is a part of another check: it ")
    assert words in said
    assert "--worker 2/2" in said


def test_a_part_of_another_reference_is_named(traces: Path, parts: Path) -> None:
    swapped = arguments(traces) | {"reference": traces / "other"}
    measure_part(**swapped, worker=StaticWorker(number=1, count=2), parts=parts)
    assert "part-1-of-2.json is a part of another check: it was measured of another reference" in (
        refused(traces, parts)
    )


def test_a_part_that_was_changed_is_refused(traces: Path, parts: Path) -> None:
    file = parts / "part-1-of-2.json"
    file.write_bytes(file.read_bytes().replace(b'"moved": 0', b'"moved": 1', 1))
    said = refused(traces, parts)
    assert "it was changed after it was written" in said
    assert "--worker 1/2" in said


def test_a_torn_part_is_refused(traces: Path, parts: Path) -> None:
    file = parts / "part-1-of-2.json"
    file.write_bytes(file.read_bytes()[:-100])
    assert f"{file} is not what worker 1/2 of a check measured" in refused(traces, parts)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"format": "other"}, "format: found 'other'"),
        ({"version": 2}, "version: found 2"),
        ({"worker": {"number": 2, "count": 2}}, "worker: found '2/2', expected 1/2"),
        ({"worker": {"number": 9, "count": 2}}, "worker: found there is no worker 9 of 2"),
        ({"comparisons": [{"what": 3}]}, "comparisons[0].what: found 3"),
    ],
)
def test_what_a_stranger_sealed_passes_the_door(
    change: dict[str, Any], words: str, traces: Path, parts: Path
) -> None:
    file = parts / "part-1-of-2.json"
    data = json.loads(file.read_bytes())
    del data["xxh3"]
    file.write_bytes(seal(data | change)[0])
    assert words in refused(traces, parts)


@pytest.mark.parametrize("kind", ["twice", "beyond", "out", "verified"])
def test_jobs_that_are_not_those_of_the_check_are_refused(
    kind: str, traces: Path, parts: Path
) -> None:
    file = parts / "part-1-of-2.json"
    data = json.loads(file.read_bytes())
    del data["xxh3"]
    found = data["comparisons"][0]
    first = found["measured"][0]
    if kind == "twice":
        found["measured"].append(first)
    elif kind == "beyond":
        first[0] = 1 << 40
    elif kind == "out":
        found["measured"].pop()
    else:
        found["verified"].append(first[0])
        found["measured"].pop(0)
    file.write_bytes(seal(data)[0])
    assert f"{file} is a part of another check" in refused(traces, parts)


def test_a_worker_that_fails_leaves_nothing(traces: Path, tmp_path: Path) -> None:
    with pytest.raises(ttrace.TTraceError):
        measured(traces, tmp_path / "parts", 1, candidate="absent")
    assert not (tmp_path / "parts").exists()
    (tmp_path / "full").mkdir()
    found = one(Measured(statistics=Statistics(**_NAN)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "replace", _fail)
        with pytest.raises(OSError, match="no room"):
            write_part(tmp_path / "full", ONE, [found])
    assert list((tmp_path / "full").iterdir()) == []


def _fail(*_: object) -> None:
    raise OSError("no room")


_NAN: dict[str, Any] = {
    **dict.fromkeys(("count", "nonfinite_reference", "nonfinite_candidate", "unequal"), 0),
    **dict.fromkeys(("error_norm", "reference_norm", "candidate_norm", "max_error"), math.nan),
    **dict.fromkeys(("dot", "error_sum"), -math.inf),
}
