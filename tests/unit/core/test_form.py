"""Pieces that are alike share a form, and are the same pieces to whoever looks at them."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest

from ttrace.core.form import AlikePieces, PiecesForm, records_of, unlike
from ttrace.core.ids import TensorId
from ttrace.core.layout import Layout
from ttrace.core.logical import LogicalTensor, Piece
from ttrace.core.record import Location, PayloadRef, Record
from ttrace.core.rows import RecordRows

WHOLE = Layout.full((4,))
HALVES = [WHOLE.shard(0, index, 2) for index in (0, 1)]


def record(rank: int, *, layer: int = 0, digest: str = "0" * 16) -> Record:
    where = Location(segment="seg-00000.safetensors", offset=64 * layer, size_bytes=8, xxh3=digest)
    return Record(
        id=TensorId.parse(f"step0/layers.{layer}:param.weight"),
        rank=rank,
        sequence=layer,
        dtype="float32",
        shape=(2,),
        location=where,
    )


def halves(layer: int) -> tuple[Piece, ...]:
    return tuple(
        Piece(layout=layout, records=(record(rank, layer=layer),))
        for rank, layout in enumerate(HALVES)
    )


def test_pieces_of_all_layers_have_one_form() -> None:
    first, second = PiecesForm.of(halves(0)), PiecesForm.of(halves(1))
    assert first == second
    assert hash(first) == hash(second)
    assert pickle.loads(pickle.dumps(first)) == second  # noqa: S301


@pytest.mark.parametrize(
    "other",
    [
        halves(0)[:1],
        halves(0)[::-1],
        tuple(replace(piece, factor=0.5) for piece in halves(0)),
        tuple(replace(piece, layout=WHOLE) for piece in halves(0)),
        tuple(replace(piece, records=2 * piece.records) for piece in halves(0)),
        tuple(
            replace(piece, records=(piece.records[0].stored_as(PayloadRef(name="other")),))
            for piece in halves(0)
        ),
    ],
)
def test_what_is_put_together_otherwise_has_another_form(other: tuple[Piece, ...]) -> None:
    assert PiecesForm.of(other) != PiecesForm.of(halves(0))


def test_alike_pieces_are_those_of_their_records() -> None:
    terms = (Piece(layout=WHOLE, records=(record(0), record(1)), factor=0.5), *halves(0))
    form = PiecesForm.of(terms)
    found = AlikePieces(form, RecordRows.of([record(rank, layer=3) for rank in (0, 1, 0, 1)]))
    assert len(found) == 3
    assert found[0].records == (record(0, layer=3), record(1, layer=3))
    assert found[-1] == halves(3)[1]
    assert found[1:] == tuple(found)[1:] == halves(3)
    assert found == tuple(found)
    assert found != terms
    assert pickle.loads(pickle.dumps(found)) == found  # noqa: S301
    with pytest.raises(IndexError):
        AlikePieces(form, found.records)[3]


def test_records_of_a_tensor_are_those_of_pieces_and_replicas() -> None:
    tensor = LogicalTensor(shape=(4,), pieces=AlikePieces.of(halves(0)), replicas=halves(0))
    assert list(records_of(tensor)) == 2 * [record(0), record(1)]


def replica(rank: int, layout: Layout, digest: str, *, terms: int = 1) -> Piece:
    return Piece(layout=layout, records=terms * (record(rank, digest=digest),))


def test_replicas_with_other_bytes_or_of_another_place_are_unlike_and_equal_ones_together() -> None:
    pieces = (replica(0, HALVES[0], "a" * 16), replica(1, HALVES[1], "b" * 16))
    same = replica(2, HALVES[0], "a" * 16)
    others = (
        (replica(3, HALVES[0], "c" * 16), replica(6, HALVES[0], "c" * 16)),
        (replica(4, HALVES[0], "b" * 16),),
        (replica(5, HALVES[1], "b" * 16, terms=2),),
        (replica(7, HALVES[1], "b" * 16, terms=2),),  # nothing tells what a sum holds
        (replica(8, HALVES[1], "c" * 16),),  # at another place
        (replace(same, factor=0.5),),
        (replace(same, records=(replace(same.records[0], dtype="int32"),)),),
        (replace(same, records=(same.records[0].stored_as(PayloadRef(name="other")),)),),
    )
    in_order = sorted((piece for together in others for piece in together), key=_rank)
    tensor = LogicalTensor(shape=(4,), pieces=pieces, replicas=(same, *in_order))
    assert sorted(unlike(tensor), key=_ranks) == sorted(others, key=_ranks)


def _rank(piece: Piece) -> int:
    return piece.ranks[0]


def _ranks(together: tuple[Piece, ...]) -> tuple[int, ...]:
    return tuple(map(_rank, together))
