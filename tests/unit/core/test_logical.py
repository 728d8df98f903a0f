from __future__ import annotations

from ttrace.core.ids import TensorId
from ttrace.core.layout import Layout
from ttrace.core.logical import Piece, as_terms, assemble
from ttrace.core.record import Record

FULL = Layout.full((4,))


def piece(rank: int, layout: Layout, *, known: bool = False) -> Piece:
    record = Record(
        id=TensorId.parse("step0/norm:grad.weight"),
        rank=rank,
        sequence=rank,
        dtype="float32",
        shape=layout.local_shape,
        layout=layout if known else None,
    )
    return Piece(layout=layout, records=(record,))


def test_replicas_without_a_layout_may_be_terms_of_a_sum() -> None:
    tensor = as_terms(assemble((4,), [piece(rank, FULL) for rank in range(3)]))
    assert tensor is not None
    assert [found.ranks for found in tensor.pieces] == [(0, 1, 2)]
    assert (tensor.replicas, tensor.gaps) == ((), ())


def test_terms_of_different_parts_stay_apart() -> None:
    halves = [FULL.shard(0, index, 2) for index in (0, 1)]
    tensor = as_terms(assemble((4,), [piece(rank, halves[rank % 2]) for rank in range(4)]))
    assert tensor is not None
    assert sorted(found.ranks for found in tensor.pieces) == [(0, 2), (1, 3)]


def test_replicas_whose_layout_is_known_are_replicas() -> None:
    assert as_terms(assemble((4,), [piece(rank, FULL, known=True) for rank in (0, 1)])) is None
