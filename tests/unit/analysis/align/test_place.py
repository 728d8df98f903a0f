"""Records are put where they sit in the logical tensor, or it is said why they cannot be."""

from collections.abc import Sequence

import pytest

from tests.support.made_traces import batch_of, record_of, trace_of
from ttrace.analysis.align.place import Placer
from ttrace.analysis.batch import Batch
from ttrace.core.layout import Layout, Run
from ttrace.core.logical import LogicalTensor
from ttrace.core.record import Record

HALVES = batch_of(4, {(0, 0): (0, 2), (1, 0): (2, 2)})  # two data-parallel ranks
TOGETHER = batch_of(4, {(0, 0): (0, 4), (1, 0): (0, 4)})  # two ranks with the same samples
WHOLE = Layout.full((4, 6))


def placed(records: Sequence[Record], batch: Batch) -> tuple[Placer, LogicalTensor]:
    placer = Placer(trace_of(*records), batch)
    tensor = placer.place(records, placer.own_shape(records))
    assert isinstance(tensor, LogicalTensor), tensor
    return placer, tensor


def test_parts_of_the_batch_stand_where_their_samples_do() -> None:
    _, tensor = placed([record_of("a:output.0", rank, (2, 6)) for rank in (0, 1)], HALVES)
    assert tensor.shape == (4, 6)
    assert [piece.layout for piece in tensor.pieces] == [
        WHOLE.take(0, [Run(0, 2)]),
        WHOLE.take(0, [Run(2, 2)]),
    ]
    assert (tensor.gaps, tensor.replicas, tensor.notes) == ((), (), ())


def test_a_rank_that_recorded_nothing_leaves_a_gap() -> None:
    records = [record_of("a:output.0", 0, (2, 6))]
    placer = Placer(trace_of(*records, axes={1: {}}), HALVES)
    tensor = placer.place(records, placer.own_shape(records))
    assert isinstance(tensor, LogicalTensor)
    assert [str(gap) for gap in tensor.gaps] == ["[2:4, 0:6]"]


def test_equal_values_of_the_same_samples_are_replicas() -> None:
    records = [record_of("a:output.0", rank, (4, 6), value="same") for rank in (0, 1)]
    _, tensor = placed(records, TOGETHER)
    assert [piece.ranks for piece in tensor.pieces] == [(0,)]
    assert [piece.ranks for piece in tensor.replicas] == [(1,)]


def test_a_known_layout_is_taken() -> None:
    layouts = [WHOLE.shard(1, rank, 2) for rank in (1, 0)]
    records = [record_of("a:output.0", r, (4, 3), layout=layouts[r]) for r in (0, 1)]
    placer, tensor = placed(records, TOGETHER)
    assert {piece.records[0].rank: piece.layout for piece in tensor.pieces} == {
        0: layouts[0],
        1: layouts[1],
    }
    assert tensor.notes == ()
    assert placer.positions[records[1].id, 1, 0, None].layout == layouts[1]


def test_a_split_that_only_the_shape_tells_is_noted() -> None:
    records = [record_of("a:output.0", rank, (4, 3)) for rank in (0, 1)]
    placer = Placer(trace_of(*records), TOGETHER)
    alone = placer.own_shape(records)
    assert alone.stacked  # this trace alone cannot tell; the other run's shape can
    tensor = placer.place(records, type(alone)((4, 6)))
    assert isinstance(tensor, LogicalTensor)
    assert [piece.layout for piece in tensor.pieces] == [WHOLE.shard(1, r, 2) for r in (0, 1)]
    assert tensor.notes == ("layout inferred from the shape",)


def test_values_that_nothing_puts_together_stand_side_by_side() -> None:
    records = [record_of("a:output.0", rank, (4, 6)) for rank in (0, 1)]
    _, tensor = placed(records, TOGETHER)
    assert tensor.shape == (8, 6)
    assert [piece.ranks for piece in tensor.pieces] == [(0,), (1,)]
    assert tensor.gaps == ()


@pytest.mark.parametrize(
    ("shape", "expected", "words"),
    [
        ((4, 6), (4, 6, 2), "rank 0 holds 2 dims (4, 6), expected 3 dims (4, 6, 2)"),
        ((4, 5), (4, 6), "rank 0 holds shape (4, 5) in microbatch 0, which is no shard of (4, 6)"),
    ],
    ids=["other-dims", "no-shard"],
)
def test_what_fits_nowhere_is_said(
    shape: tuple[int, ...], expected: tuple[int, ...], words: str
) -> None:
    records = [record_of("a:output.0", 0, shape)]
    placer = Placer(trace_of(*records), batch_of(4, {(0, 0): (0, 4)}))
    own = placer.own_shape(records)
    found = placer.place(records, type(own)(expected))
    assert isinstance(found, str)
    assert found.startswith(words)


def test_losses_of_microbatches_are_one_sum() -> None:
    records = [record_of(":loss", rank, ()) for rank in (0, 1)]
    _, tensor = placed(records, HALVES)
    (piece,) = tensor.pieces
    assert piece.records == tuple(records)


def test_a_gradient_of_what_all_samples_share_is_a_sum_over_them() -> None:
    forward = [record_of("table:output.0", rank, (7, 6), value="table") for rank in (0, 1)]
    backward = [record_of("table:grad_output.0", rank, (7, 6)) for rank in (0, 1)]
    placer = Placer(trace_of(*forward, *backward), HALVES)
    own = placer.own_shape(forward)
    tensor = placer.place(backward, own)
    assert isinstance(tensor, LogicalTensor)
    assert own.shape == (7, 6)
    assert [piece.records for piece in tensor.pieces] == [tuple(backward)]
    shares = [placer.positions[record.id, record.rank, 0, None].share for record in backward]
    assert shares == [(0, 2), (1, 2)]  # each gives its part of the reference's sum


def test_a_tensor_is_put_together_once_for_each_shape() -> None:
    records = [record_of("a:output.0", rank, (4, 3)) for rank in (0, 1)]
    placer = Placer(trace_of(*records), TOGETHER)
    own = placer.own_shape(records)
    narrow = type(own)((4, 6))
    assert placer.place(records, narrow) is placer.place(records, narrow)
    assert placer.place(records, own) is not placer.place(records, narrow)
