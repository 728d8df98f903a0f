"""A vocabulary that two runs pad to different sizes: what both have is compared.

Enters: the records of one id on both sides. Leaves: the same records, their layouts ending where
the shorter vocabulary ends; what lies beyond is padding in at least one of the runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ttrace.adapters.base import NO_BATCH
from ttrace.core.ids import Kind, TensorId
from ttrace.core.record import Record
from ttrace.core.rows import RecordRows
from ttrace.trace.reader import Trace

Crop = tuple[int, int]  # dim, size


def vocabulary_of(reference: Trace, candidate: Trace) -> frozenset[str]:
    """Modules of which both runs say that they have a row for each token."""
    sides = (
        {module for rank in trace.ranks.values() for module in rank.info.vocabulary}
        for trace in (reference, candidate)
    )
    return frozenset(set.intersection(*sides))


def find_crop(
    id_: TensorId, reference: Sequence[Record], candidate: Sequence[Record]
) -> Crop | None:
    """Where to end both, if they differ in the size of the vocabulary."""
    left, right = (_shape(records) for records in (reference, candidate))
    if left is None or right is None or len(left) != len(right) or not left:
        return None
    dim = _dim(id_, reference[0])
    if dim is None:
        return None
    dim %= len(left)
    if left[dim] == right[dim]:
        return None
    return dim, min(left[dim], right[dim])


def cropped(records: Sequence[Record], crop: Crop) -> RecordRows:
    return RecordRows.of(
        [replace(r, layout=r.layout.crop(*crop)) for r in records if r.layout is not None]
    )


def padding_note(id_: TensorId, reference: Record, candidate: Record, crop: Crop) -> str:
    sizes = [r.layout.shape[crop[0]] for r in (reference, candidate) if r.layout is not None]
    return (
        f"{id_.module}: the vocabulary has {sizes[0]} rows in the reference and {sizes[1]} in the "
        f"candidate, padding included; the first {crop[1]} are compared"
    )


def _shape(records: Sequence[Record]) -> tuple[int, ...] | None:
    """Only where every rank knows its layout."""
    layouts = [record.layout for record in records]
    shapes = {layout.shape for layout in layouts if layout is not None}
    return shapes.pop() if None not in layouts and len(shapes) == 1 else None


def _dim(id_: TensorId, record: Record) -> int | None:
    """The rows of a weight and all that belongs to it; the columns of logits."""
    if id_.kind in (Kind.OUTPUT, Kind.GRAD_OUTPUT):
        return -1
    source = record.same_as  # a weight that is given to a module as an argument
    is_weight = record.batch_dim == NO_BATCH or (source is not None and source.kind is Kind.PARAM)
    return 0 if is_weight or not id_.kind.is_activation else None
