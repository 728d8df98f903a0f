"""A covering set of ranks: every part is read once, and what others have is told and not read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import ttrace
from tests.support.invoking import invoke
from tests.support.made_traces import write_rank
from ttrace.core.finding import Note, Topic
from ttrace.core.layout import Layout
from ttrace.core.results import CheckResult, Outcome, Verdict
from ttrace.trace.spans import SpanReader

TP, RANKS = 2, 8  # every shard is on four ranks
PIECE, REPLICA = 1, 5  # both hold the second one
WHOLE = torch.randn(8, 6, generator=torch.Generator().manual_seed(0))
NAMES = ("a:main_grad.weight", "b:main_grad.weight")
WRONG = NAMES[1]

Check = Callable[..., CheckResult]


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("traces")
    write_rank(folder / "reference", 0, 1, dict.fromkeys(NAMES, WHOLE))
    noisy = dict.fromkeys(NAMES, WHOLE + 1e-6)
    write_rank(folder / "perturbed", 0, 1, noisy, noise_seed=1)
    for name, wrong in (("right", None), ("piece", PIECE), ("replica", REPLICA)):
        for rank in range(RANKS):
            tp = rank % TP
            shard, layout = WHOLE.chunk(TP)[tp], Layout.full(WHOLE.shape).shard(0, tp, TP)
            values = dict.fromkeys(NAMES, (shard, layout))
            if rank == wrong:
                values[WRONG] = (1.5 * shard, layout)
            write_rank(folder / name, rank, RANKS, values)
    return folder


@pytest.fixture
def check(traces: Path) -> Check:
    def made(name: str, **more: Any) -> CheckResult:
        noise = [traces / "perturbed"]
        return ttrace.check(traces / "reference", traces / name, perturbed=noise, **more)

    return made


def noted(result: CheckResult, topic: Topic) -> Note:
    (note,) = (note for note in result.notes if note.topic is topic)
    return note


def test_what_is_right_is_found_to_be_from_fewer_ranks(check: Check) -> None:
    every, some = check("right"), check("right", sample_ranks=True)
    assert every.outcome is some.outcome is Outcome.EQUIVALENT
    note = noted(some, Topic.COVERING_RANKS)
    assert (note.count, note.total) == (TP, RANKS)
    assert not [note for note in some.notes if note.topic is Topic.OTHER_REPLICAS]
    assert not [note for note in every.notes if note.topic is Topic.COVERING_RANKS]


def test_a_part_that_is_wrong_is_found(check: Check) -> None:
    result = check("piece", sample_ranks=True)
    assert result.outcome is Outcome.NOT_EQUIVALENT
    assert [str(failure.id) for failure in result.failures] == [f"step0/{WRONG}"]


def test_a_replica_that_is_wrong_is_told_of_and_not_compared(check: Check) -> None:
    every, some = check("replica"), check("replica", sample_ranks=True)
    (conflict,) = every.failures
    assert conflict.verdict is Verdict.CONFLICT
    assert some.outcome is Outcome.EQUIVALENT
    note = noted(some, Topic.OTHER_REPLICAS)
    assert (note.count, note.total) == (1, len(NAMES) * (RANKS - TP))
    assert note.first == conflict.id


def test_nothing_is_read_of_the_other_ranks(check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: set[int] = set()
    fill, whole = SpanReader._fill, SpanReader.whole

    def filling(self: SpanReader, record: Any, *rest: Any) -> None:
        seen.add(record.rank)
        fill(self, record, *rest)

    def reading(self: SpanReader, record: Any) -> bytes:
        seen.add(record.rank)
        return whole(self, record)

    monkeypatch.setattr(SpanReader, "_fill", filling)
    monkeypatch.setattr(SpanReader, "whole", reading)
    check("replica", sample_ranks=True)
    assert seen == set(range(TP))
    check("replica")
    assert REPLICA in seen


def test_people_ask_for_it_by_an_option(traces: Path) -> None:
    sides = ("check", traces / "reference", traces / "replica")
    invoke(*sides).require(1)
    done = invoke(*sides, "--sample-ranks")
    done.require(0)
    assert "was read from 2 of 8 ranks, which hold every part of every tensor" in done.out
    assert "1 of 12 replicas on other ranks, first of step0/b:main_grad.weight" in done.out
