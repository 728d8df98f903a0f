"""Records that add up to one value: terms over mesh axes, contributions of microbatches."""

import pytest

from tests.support.made_traces import batch_of, record_of, trace_of
from ttrace.analysis.align.holdings import Holdings
from ttrace.analysis.align.sums import Placed, Unplaceable, pieces_of
from ttrace.core.layout import Layout
from ttrace.core.record import Record

WHOLE = Layout.full((4, 6))
NUMBER = Layout.full(())
TENSOR_PARALLEL = {rank: {"tp": (rank, 2)} for rank in (0, 1)}
# Two data-parallel ranks with two microbatches each.
QUARTERS = batch_of(8, {(r, m): (4 * r + 2 * m, 2) for r in (0, 1) for m in (0, 1)})


def terms(*records: Record) -> list[Placed]:
    partial = WHOLE.summed_over("tp")
    return [Placed(record, partial, WHOLE) for record in records]


def numbers(name: str, *keys: tuple[int, int], recompute: bool = False) -> list[Placed]:
    """One number of every rank and microbatch."""
    records = [record_of(name, r, (), microbatch=m, recompute=recompute) for r, m in keys]
    return [Placed(record, NUMBER, NUMBER, contributes=True) for record in records]


def trace_with(placed: list[Placed]) -> Holdings:
    return Holdings(trace_of(*(item.record for item in placed)), QUARTERS)


ALL = ((0, 0), (0, 1), (1, 0), (1, 1))


def test_a_whole_tensor_is_a_piece_by_itself() -> None:
    records = [record_of("a:output.0", rank, (4, 6)) for rank in (0, 1)]
    holdings = Holdings(trace_of(*records), batch_of(4, {}))
    pieces = pieces_of(holdings, [Placed(record, WHOLE, WHOLE) for record in records])
    assert [piece.records for piece in pieces] == [(records[0],), (records[1],)]


def test_terms_of_an_axis_are_one_piece() -> None:
    records = [record_of("a:output.0", rank, (4, 6)) for rank in (0, 1)]
    holdings = Holdings(trace_of(*records, axes=TENSOR_PARALLEL), batch_of(4, {}))
    (piece,) = pieces_of(holdings, terms(*records))
    assert piece.records == tuple(records)
    assert piece.factor == 1


def test_a_missing_term_is_said_with_the_ranks_that_are_there() -> None:
    record = record_of("a:output.0", 1, (4, 6))
    holdings = Holdings(trace_of(record, axes=TENSOR_PARALLEL), batch_of(4, {}))
    with pytest.raises(Unplaceable, match=r"over tp needs 2 terms, found 1 \(ranks \[1\]"):
        pieces_of(holdings, terms(record))


def test_terms_of_other_microbatches_are_other_sums() -> None:
    records = [
        record_of("a:output.0", rank, (4, 6), microbatch=m) for m in (0, 1) for rank in (0, 1)
    ]
    holdings = Holdings(trace_of(*records, axes=TENSOR_PARALLEL), batch_of(4, {}))
    pieces = pieces_of(holdings, terms(*records))
    assert [{record.microbatch for record in piece.records} for piece in pieces] == [{0}, {1}]


def test_a_loss_is_the_sum_of_all_microbatches_of_all_ranks() -> None:
    placed = numbers(":loss", *ALL)
    (piece,) = pieces_of(trace_with(placed), placed)
    assert [(r.rank, r.microbatch) for r in piece.records] == list(ALL)
    assert piece.factor == 1


def test_an_output_of_one_number_is_the_mean_of_all_microbatches() -> None:
    placed = numbers("router:output.loss", *ALL)
    (piece,) = pieces_of(trace_with(placed), placed)
    assert piece.factor == pytest.approx(1 / 4)


def test_a_microbatch_that_lacks_its_gradient_is_named() -> None:
    forward = numbers("table:output.0", *ALL)
    backward = numbers("table:grad_output.0", *ALL[:3])
    holdings = trace_with([*forward, *backward])
    with pytest.raises(Unplaceable, match=r"4 microbatches of all ranks lacks 1: microbatch 1"):
        pieces_of(holdings, backward)


def test_a_parameter_that_a_microbatch_does_not_use_gets_nothing_from_it() -> None:
    placed = numbers("a:grad.scale", *ALL[:3])
    (piece,) = pieces_of(trace_with(placed), placed)
    assert len(piece.records) == 3


def test_replicas_are_sums_of_their_own() -> None:
    """Two ranks that hold the same samples, as tensor-parallel ones do."""
    batch = batch_of(4, {(r, m): (2 * m, 2) for r in (0, 1) for m in (0, 1)})
    placed = numbers(":loss", *ALL)
    holdings = Holdings(trace_of(*(item.record for item in placed)), batch)
    pieces = pieces_of(holdings, placed)
    assert [piece.ranks for piece in pieces] == [(0,), (1,)]
    assert all(len(piece.records) == 2 for piece in pieces)


def test_what_was_not_recomputed_keeps_its_original_in_the_recomputed_sum() -> None:
    placed = [*numbers(":loss", *ALL), *numbers(":loss", ALL[0], recompute=True)]
    first, again = pieces_of(trace_with(placed), placed)
    assert not any(record.recompute for record in first.records)
    assert sorted(record.recompute for record in again.records) == [False, False, False, True]
