"""A gradient that one run has only as part of another is listed, and its bytes are verified."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.support.made_traces import write_rank
from ttrace.analysis.check import check
from ttrace.core.finding import Topic
from ttrace.core.ids import TensorId
from ttrace.core.record import RankInfo, Record, Summary
from ttrace.core.results import CheckResult, Outcome
from ttrace.errors import CorruptTrace
from ttrace.report import overall
from ttrace.trace.reader import Trace
from ttrace.trace.writer import TraceWriter

GRADIENT = "step0/b:grad_input.0"
VALUES = {"a:output.0": torch.ones(4, 6), "a:grad_output.0": torch.ones(4, 6)}


@pytest.fixture
def reference(tmp_path: Path) -> Path:
    """Its gradient of b's input is that of a's output, over all uses."""
    writer = TraceWriter(tmp_path / "reference", RankInfo(rank=0, world_size=1))
    for sequence, (name, tensor) in enumerate(VALUES.items()):
        id_ = TensorId.parse(f"step0/{name}")
        shape = tuple(tensor.shape)
        record = Record(id=id_, rank=0, sequence=sequence, dtype="float32", shape=shape)
        writer.write(record, tensor)
    same = Record(
        id=TensorId.parse(GRADIENT),
        rank=0,
        sequence=9,
        dtype="float32",
        shape=(4, 6),
        same_as=TensorId.parse("step0/a:grad_output.0"),
    )
    writer.note(same)
    writer.close(Summary(steps=1, hooks_expected=0, hooks_fired=0))
    return tmp_path / "reference"


@pytest.fixture
def candidate(tmp_path: Path) -> Path:
    return write_rank(tmp_path / "candidate", 0, 1, {**VALUES, "b:grad_input.0": torch.ones(4, 6)})


def together(result: CheckResult) -> list[str]:
    found = [note for note in result.notes if note.topic is Topic.KEPT_TOGETHER]
    return [overall.note(note) for note in found]


@pytest.mark.parametrize("is_exchanged", [False, True])
def test_it_is_listed_with_the_reason(
    reference: Path, candidate: Path, *, is_exchanged: bool
) -> None:
    runs = (candidate, reference) if is_exchanged else (reference, candidate)
    result = check(*runs)
    assert result.outcome is Outcome.EQUIVALENT
    (told,) = together(result)
    assert told.startswith(f"1 gradient, first {GRADIENT}, was not compared by itself: in one of")


def test_where_both_keep_it_so_there_is_nothing_to_say(reference: Path) -> None:
    assert together(check(reference, reference)) == []


def test_its_bytes_are_verified(reference: Path, candidate: Path) -> None:
    (record,) = Trace.open(candidate).by_id()[TensorId.parse(GRADIENT)]
    assert record.location is not None
    file = candidate / "rank-00000" / record.location.segment
    data = bytearray(file.read_bytes())
    data[record.location.offset] ^= 1
    file.write_bytes(data)
    with pytest.raises(CorruptTrace, match=GRADIENT):
        check(reference, candidate)
