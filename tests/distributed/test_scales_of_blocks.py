"""Ranks that quantise their samples apart are right, and so are those that agree on a scale."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.apart_train import Program, train
from tests.support.tracing import explain
from ttrace.core.blame import Blame, Phase
from ttrace.core.finding import Note, Topic
from ttrace.core.results import CheckResult, Outcome
from ttrace.lab.experiment import Experiment
from ttrace.lab.functions import WorkerPool
from ttrace.lab.launch import LocalExecutor
from ttrace.lab.run import Function
from ttrace.report.overall import note as told

ABOUT = (Topic.SCALES_OF_BLOCKS, Topic.SCALES_OF_ALL, Topic.QUANTISED_AMONG_CALLS)


def compare(pool: WorkerPool, folder: Path, candidate: Program, ranks: int = 2) -> CheckResult:
    reference = replace(candidate, plant="", microbatches=1)
    return Experiment(
        reference=Function(train, 1, (reference,)),
        candidate=Function(train, ranks, (candidate,)),
        folder=folder,
        execute=LocalExecutor(pool),
    ).diff()


def about(result: CheckResult) -> dict[Topic, Note]:
    return {note.topic: note for note in result.notes if note.topic in ABOUT}


@pytest.mark.parametrize(
    ("program", "ranks", "blocks"),
    [
        pytest.param(Program(), 2, 2, id="chunks"),
        pytest.param(Program(takes_turns=True), 2, 2, id="in turns"),
        pytest.param(Program(flattens=True), 2, 2, id="flattened"),
        pytest.param(Program(microbatches=2), 2, 4, id="microbatches"),
        pytest.param(Program(microbatches=4), 1, 4, id="microbatches of one rank"),
    ],
)
def test_scales_of_a_ranks_samples_are_right(
    program: Program, ranks: int, blocks: int, pool: WorkerPool, tmp_path: Path
) -> None:
    result = compare(pool, tmp_path, program, ranks)
    assert result.outcome is Outcome.EQUIVALENT, explain(result)
    note = about(result)[Topic.SCALES_OF_BLOCKS]
    assert note.total == blocks
    assert note.modules == tuple(f"blocks.{n}.{name}" for n in (0, 1) for name in ("up", "down"))
    assert note.factor is not None
    assert note.factor < 1e-2
    assert result.largest_ratio < 0.1
    assert f"in the same {blocks} blocks of samples" in told(note)
    assert Path(result.reference).parent.name == "in-blocks"


def test_ranks_that_agree_on_scales_are_right_too(pool: WorkerPool, tmp_path: Path) -> None:
    result = compare(pool, tmp_path, Program(agrees=True))
    assert result.outcome is Outcome.EQUIVALENT, explain(result)
    factor = about(result)[Topic.SCALES_OF_ALL].factor
    assert factor is not None
    assert factor > 100
    assert result.largest_ratio < 0.1
    assert Path(result.reference) == tmp_path / "reference"


@pytest.mark.parametrize("agrees", [False, True], ids=["apart", "agreed"])
@pytest.mark.parametrize("place", ["blocks.0.up", "blocks.1.down"])
def test_a_wrong_scale_is_placed_in_either(
    place: str,
    agrees: bool,
    pool: WorkerPool,
    tmp_path: Path,
) -> None:
    result = compare(pool, tmp_path, Program(agrees=agrees, plant=place))
    assert result.outcome is Outcome.NOT_EQUIVALENT
    assert [culprit.blame for culprit in result.culprits] == [
        Blame.of(place, phase=Phase.FORWARD)
    ], explain(result)
    assert (Topic.SCALES_OF_ALL if agrees else Topic.SCALES_OF_BLOCKS) in about(result)


def test_what_is_quantised_between_calls_is_named(pool: WorkerPool, tmp_path: Path) -> None:
    note = about(compare(pool, tmp_path, Program(between=True)))[Topic.QUANTISED_AMONG_CALLS]
    assert note.modules == ("blocks.0", "blocks.1")
    assert told(note).startswith("blocks.0, blocks.1 quantise between calls")


def test_a_run_without_codes_is_not_repeated(pool: WorkerPool, tmp_path: Path) -> None:
    result = compare(pool, tmp_path, Program(codes=False))
    assert result.outcome is Outcome.EQUIVALENT, explain(result)
    assert not about(result)
    assert not (tmp_path / "in-blocks").exists()
