"""Routing: rows inside a module that orders the tokens it gets by the expert they go to.

    experts(tokens [T, width], chosen [T, k])     inside: [T * k, width], expert after expert

Such rows are no samples in order, though there are as many for each. Within an expert their order
is that of a sort which need not be stable, so that only their values tell which row is which.
Enters: a batch, and what such a module made first. Leaves: the rows of every microbatch among the
reference's, by the nearest values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import torch

from ttrace.analysis.batch import Batch, MicrobatchKey, Part, Strand, strand_of
from ttrace.analysis.sources import Source
from ttrace.core.ids import Kind, TensorId
from ttrace.core.layout import Run, normalise
from ttrace.core.record import Record

# Chosen: a second on one core. Rows of larger modules are not looked for.
_MOST_PRODUCTS = 10**11


def with_routing(strand: Strand, batch: Batch, reference: Source, candidate: Source) -> Batch:
    """The candidate's batch, with the rows of every module that orders its tokens."""
    if not any(map(batch.splits, batch.parts)):
        return batch
    others, unknown = [], set()
    for id_, count in _routers(strand, reference):
        rows = _rows_inside(id_, count, reference, candidate)
        if rows is None:
            unknown.add(id_.module)
        else:
            others.append(rows)
    return replace(batch, others=(*batch.others, *others), unknown=frozenset(unknown))


def _routers(strand: Strand, reference: Source) -> Iterator[tuple[TensorId, int]]:
    """Modules that get tokens and whole numbers, k for each of them; how many rows that makes."""
    for id_, records in reference.trace.by_id().items():
        shape = records[0].shape
        is_input = id_.kind is Kind.INPUT and id_.module and not id_.call
        are_choices = len(shape) == 2 and records[0].dtype.startswith("int")
        if not is_input or not are_choices or strand_of(reference.trace, id_) != strand:
            continue
        if _gets_tokens(reference, id_, shape):
            yield id_, shape[0] * shape[1]


def _gets_tokens(reference: Source, id_: TensorId, chosen: tuple[int, ...]) -> bool:
    return any(
        replace(other, slot=id_.slot) == id_
        and records[0].dtype.startswith(("float", "bfloat"))
        and len(records[0].shape) == 2
        and records[0].shape[0] == chosen[0]
        and records[0].shape[1] > chosen[1]
        for other, records in reference.trace.by_id().items()
    )


def _rows_inside(id_: TensorId, count: int, reference: Source, candidate: Source) -> Batch | None:
    """The rows of the first tensor inside the module that has one for each choice."""
    first = min(_made_inside(reference, id_, count), key=lambda r: r.sequence, default=None)
    if first is None:
        return None
    found = {
        MicrobatchKey(id_.step, record.rank, record.microbatch): candidate.spans.load(record)
        for record in _stored(candidate, first.id)
    }
    rows = _nearest(reference.spans.load(first), found)
    if rows is None:
        return None
    parts = {key: Part(normalise(Run(row, 1) for row in held)) for key, held in rows.items()}
    return Batch(sizes={id_.step: count}, parts=parts, within=id_.module)


def _made_inside(reference: Source, id_: TensorId, count: int) -> Iterator[Record]:
    for other in reference.trace.by_id():
        if other.step == id_.step and other.module.startswith(f"{id_.module}."):
            stored = _stored(reference, other)
            forward = other.kind in (Kind.INPUT, Kind.OUTPUT)
            if forward and len(stored) == 1 and stored[0].shape[:1] == (count,):
                yield stored[0]


def _stored(source: Source, id_: TensorId) -> list[Record]:
    records = source.trace.by_id().get(id_, [])
    return [record for record in records if record.location is not None and not record.recompute]


def _nearest(
    expected: torch.Tensor, found: Mapping[MicrobatchKey, torch.Tensor]
) -> dict[MicrobatchKey, list[int]] | None:
    """Every row's nearest in the reference, if each is the nearest of one row alone."""
    known = expected.flatten(1).float()
    held = {key: tensor.flatten(1).float() for key, tensor in found.items() if tensor.ndim > 1}
    count = sum(map(len, held.values()))
    if len(held) != len(found) or any(t.shape[1] != known.shape[1] for t in held.values()):
        return None
    if count != len(known) or count * known.numel() > _MOST_PRODUCTS:
        return None
    rows = {key: torch.cdist(tensor, known).argmin(dim=1).tolist() for key, tensor in held.items()}
    return rows if len({row for some in rows.values() for row in some}) == count else None
