"""Steps that some ranks made and others left out, or only the candidate made."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

from tests.support.judging import made_source, ruled
from ttrace.analysis.judge.rules.steps import PartialSteps
from ttrace.analysis.sources import Source
from ttrace.core.finding import Finding
from ttrace.core.ids import TensorId
from ttrace.core.record import Record
from ttrace.core.results import TensorResult, Verdict
from ttrace.core.rows import RecordRows

NEW = "a:param_after.weight"


def source(*held: str, faults: tuple[str, ...] = (), by_hand: bool = False) -> Source:
    """Of records as `rank step/id`."""
    told = (each.split(" ") for each in held)
    records = RecordRows.of(
        [
            Record(id=TensorId.parse(id_), rank=int(rank), sequence=1, dtype="float32", shape=(1,))
            for rank, id_ in told
        ]
    )
    steps = tuple(sorted({record.id.step for record in records}))
    trace = SimpleNamespace(records=records, steps=steps, by_id=records.by_id)
    made: Any = made_source(trace=trace, faults=faults, updated_by_hand=by_hand)
    return cast(Source, made)


def of_rank(rank: int, step: int = 0, *, updates: bool = True) -> list[str]:
    kinds = ["a:param.weight", "a:grad.weight", *([NEW] if updates else [])]
    return [f"{rank} step{step}/{kind}" for kind in kinds]


def result(step: int = 0, verdict: Verdict = Verdict.PASS) -> TensorResult:
    return TensorResult(id=TensorId.parse(f"step{step}/{NEW}"), verdict=verdict, order=0)


WHOLE = source(*of_rank(0))


def partial(
    results: Sequence[TensorResult], reference: Source, candidate: Source
) -> tuple[TensorResult, ...]:
    return ruled(PartialSteps(), results, reference=reference, candidate=candidate)


def test_a_rank_that_makes_no_step_is_named_though_its_replica_passes() -> None:
    candidate = source(*of_rank(0), *of_rank(1, updates=False))
    (found,) = partial([result()], WHOLE, candidate)
    assert (found.verdict, found.finding) == (Verdict.CONFLICT, Finding.UPDATED_BY_SOME)
    assert found.ranks == (1,)
    assert found.specifics is not None
    assert (found.specifics.ranks, found.specifics.other_ranks) == ((0,), (1,))


def test_where_the_reference_left_the_step_out_it_is_the_other_rank() -> None:
    reference = source(*of_rank(0, updates=False), *of_rank(0, step=1))
    candidate = source(
        *of_rank(0), *of_rank(1, updates=False), *of_rank(0, step=1), *of_rank(1, step=1)
    )
    results = [result(0, Verdict.EXTRA), result(1)]
    found = partial(results, reference, candidate)
    assert [each.ranks for each in found] == [(0,), ()]
    assert found[1].verdict is Verdict.PASS


def test_a_step_that_only_the_candidate_made_is_wrong() -> None:
    reference = source(*of_rank(0, updates=False), *of_rank(0, step=1))
    candidate = source(*of_rank(0), *of_rank(0, step=1))
    (found,) = ruled(
        PartialSteps(), [result(0, Verdict.EXTRA)], reference=reference, candidate=candidate
    )
    assert (found.verdict, found.finding) == (Verdict.MISMATCH, Finding.UPDATED_ALONE)


def test_of_a_reference_that_never_updates_nobody_knows_whether_it_left_one_out() -> None:
    reference, candidate = source(*of_rank(0, updates=False)), source(*of_rank(0))
    (found,) = ruled(
        PartialSteps(), [result(0, Verdict.EXTRA)], reference=reference, candidate=candidate
    )
    assert found.verdict is Verdict.EXTRA


def unchanged(reference: Source, candidate: Source) -> bool:
    (found,) = partial([result()], reference, candidate)
    return (found.verdict, found.ranks) == (Verdict.PASS, ())


def test_ranks_that_all_update_or_all_leave_out_are_right() -> None:
    both = source(*of_rank(0), *of_rank(1))
    assert unchanged(WHOLE, both)
    idle = source(*of_rank(0, updates=False), *of_rank(1, updates=False))
    assert unchanged(source(*of_rank(0, updates=False)), idle)


def test_a_rank_without_gradients_has_no_step_to_make() -> None:
    assert unchanged(WHOLE, source(*of_rank(0), "1 step0/a:param.weight"))


def test_parameters_that_an_idle_rank_does_not_hold_are_right() -> None:
    other = [each.replace("a:", "b:") for each in of_rank(1, updates=False)]
    assert unchanged(WHOLE, source(*of_rank(0), *other))


def test_what_was_lost_or_updated_by_hand_is_not_accused() -> None:
    held = (*of_rank(0), *of_rank(1, updates=False))
    assert unchanged(WHOLE, source(*held, faults=("a disk was full",)))
    assert unchanged(source(*of_rank(0), faults=("a disk was full",)), source(*held))
    assert unchanged(WHOLE, source(*held, by_hand=True))


def test_copies_in_full_precision_are_left_to_their_own_verdicts() -> None:
    copy = TensorResult(
        id=TensorId.parse("step0/a:param_after.weight.master"), verdict=Verdict.PASS, order=0
    )
    candidate = source(*of_rank(0), *of_rank(1, updates=False))
    assert partial([copy], WHOLE, candidate)[0].verdict is Verdict.PASS
