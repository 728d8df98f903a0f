"""Which parts count as rounded by the same random numbers, when all of a step are looked at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.support.judging import made_source, ruled
from tests.support.made_results import tensor as passing
from ttrace.analysis.judge.rules.shared_draws import Both, SharedDraws
from ttrace.core.finding import Finding
from ttrace.core.ids import TensorId
from ttrace.core.layout import Layout
from ttrace.core.logical import LogicalTensor, Piece
from ttrace.core.record import Record
from ttrace.core.results import TensorResult, Verdict
from ttrace.core.statistics import Statistic
from ttrace.measure.rounding import SHIFTS, Coincidence

SHAPE = (64, 32)
ALIKE = Coincidence(sums=(200.0, 3.0, -5.0, 1.0, 0.0), variance=100.0, size=1000.0)
APART = Coincidence(sums=(9.0, 3.0, -5.0, 1.0, 0.0), variance=100.0, size=1000.0)
NOTHING = Coincidence()
COLUMNS = Coincidence(sums=(200.0,) * (1 + SHIFTS), variance=100.0, size=1000.0)
WEAK = Coincidence(sums=(200.0, 3.0, -5.0, 1.0, 0.0), variance=100.0, size=10_000.0)


def tensor(id_: TensorId, layouts: Sequence[Layout], dtype: str = "bfloat16") -> LogicalTensor:
    pieces = [
        Piece(
            layout=layout,
            records=(Record(id=id_, rank=rank, sequence=1, dtype=dtype, shape=layout.local_shape),),
        )
        for rank, layout in enumerate(layouts)
    ]
    return LogicalTensor(shape=SHAPE, pieces=tuple(pieces))


WHOLE = Layout.full(SHAPE)
HALVES = [WHOLE.shard(0, rank, 2) for rank in range(2)]


def judged(
    *measured: tuple[Coincidence, Coincidence],
    layouts: Sequence[Layout] = HALVES,
    dtype: str = "bfloat16",
) -> tuple[TensorResult, ...]:
    """Of as many tensors of one step, by what was measured of them."""
    ids = [TensorId.parse(f"step0/{name}:param_after.weight") for name in "abc"[: len(measured)]]
    pairs = {id_: (tensor(id_, [WHOLE], dtype), tensor(id_, layouts, dtype)) for id_ in ids}
    by_id = dict(zip(ids, measured, strict=True))

    def run(jobs: Sequence[Any]) -> list[Any]:
        return [by_id[job.id] for job in jobs]

    results = [replace(passing(id_, 0, 0.3), ratio=0.3) for id_ in ids]
    noisy = made_source(rounds_updates=True)
    return ruled(SharedDraws(), results, run, pairs=pairs, perturbed=[noisy])


@pytest.mark.parametrize("both", [(ALIKE, NOTHING), (NOTHING, ALIKE)], ids=["more", "away"])
def test_parts_that_are_alike_in_place_alone_are_named(both: Both) -> None:
    (found,) = judged(both)
    assert (found.verdict, found.finding) == (Verdict.MISMATCH, Finding.ROUNDED_ALIKE)
    assert found.ranks == (0, 1)
    assert found.worst is not None
    reading = found.worst.reading
    assert (reading.statistic, reading.value) == (Statistic.COINCIDENCE, 0.2)


@pytest.mark.parametrize("one", [APART, COLUMNS, WEAK], ids=["by chance", "columns", "weak"])
def test_others_are_not(one: Coincidence) -> None:
    (found,) = judged((one, NOTHING))
    assert (found.verdict, found.ratio) == (Verdict.PASS, 0.3)


def test_all_of_a_step_decide_together_and_each_for_itself_whether_it_is_one() -> None:
    small = Coincidence(sums=(8.0, 0.0, 0.0, 0.0, 0.0), variance=4.0, size=30.0)
    verdicts = [found.verdict for found in judged((ALIKE, NOTHING), (small, NOTHING), (APART,) * 2)]
    assert verdicts == [Verdict.MISMATCH, Verdict.MISMATCH, Verdict.PASS]
    assert judged((small, NOTHING))[0].verdict is Verdict.PASS


@pytest.mark.parametrize(
    "layouts",
    [
        [WHOLE],
        [HALVES[0]],
        [WHOLE.shard(0, 0, 3), WHOLE.shard(0, 2, 3)],
        [WHOLE.zigzag(0, rank, 2) for rank in range(2)],
    ],
    ids=["whole", "one part", "uneven", "zigzag"],
)
def test_only_parts_of_one_shape_and_in_one_piece_are_compared(layouts: Sequence[Layout]) -> None:
    (found,) = judged((ALIKE, ALIKE), layouts=layouts)
    assert found.verdict is Verdict.PASS


def test_wide_dtypes_are_not_rounded_by_chance() -> None:
    (found,) = judged((ALIKE, ALIKE), dtype="float32")
    assert found.verdict is Verdict.PASS
