"""A covering set of ranks: as few as hold every part of every tensor, and what the others have.

    read from 39 of 256 ranks

Enters: logical tensors. Leaves: the same without their replicas; and notes that say so. Pieces are
those of the first ranks that hold them, of all tensors alike, so the ranks of all pieces are few:
of parameters one replica of all their shards, of activations one rank for each part of the batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from ttrace.core.alignment import Pair
from ttrace.core.finding import Note, Topic
from ttrace.core.form import AlikePieces, unlike
from ttrace.core.ids import TensorId
from ttrace.core.logical import LogicalTensor


def without_replicas(tensor: LogicalTensor) -> LogicalTensor:
    """Without what other ranks hold, too."""
    return replace(tensor, replicas=()) if tensor.replicas else tensor


def of_covering(
    whole: Mapping[TensorId, Pair], read: Mapping[TensorId, Pair], ranks: int
) -> Iterator[Note]:
    """How many ranks of the candidate were read from; replicas that may be wrong, unseen."""
    used = {rank for _, candidate in read.values() for rank in _ranks(candidate)}
    yield Note(topic=Topic.COVERING_RANKS, count=len(used), total=ranks)
    left_out = {
        id_: candidate
        for id_, (_, candidate) in whole.items()
        if candidate.replicas and _is_covered(read[id_][1], candidate)
    }
    differing = {id_: sum(map(len, unlike(tensor))) for id_, tensor in left_out.items()}
    first = next((id_ for id_, count in differing.items() if count), None)
    if first is not None:
        yield Note(
            topic=Topic.OTHER_REPLICAS,
            count=sum(differing.values()),
            total=sum(len(tensor.replicas) for tensor in left_out.values()),
            first=first,
        )


def _is_covered(read: LogicalTensor, whole: LogicalTensor) -> bool:
    """Whether it was read without its replicas; those that are terms of a sum are its pieces."""
    return read.pieces is whole.pieces and not read.replicas


def _ranks(tensor: LogicalTensor) -> list[int]:
    rows = AlikePieces.of(tensor.pieces).records
    found: list[int] = np.unique(rows.table.columns.rank[rows.numbers]).tolist()
    return found
