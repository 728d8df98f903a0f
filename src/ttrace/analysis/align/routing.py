"""Routing: rows that are tokens in the order of the experts that they go to.

    experts(tokens [T, width], chosen [T, k])     inside: [T * k, width], expert after expert
    experts.0(tokens [n, width])                  as many as the router sent there

Such rows are no samples in order, though there are as many for each. Within an expert their order
is that of a sort which need not be stable, so that only their values tell which row is which; equal
tokens, as the first of every sample, are told apart by their gradients. Enters: a batch, and what
such a module made first. Leaves: the rows of every microbatch among the reference's, by the nearest
values.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace

import torch

from ttrace.analysis.batch import Batch, MicrobatchKey, Part, Strand, strand_of
from ttrace.analysis.sources import Source
from ttrace.core.ids import Kind, TensorId
from ttrace.core.layout import Run, normalise
from ttrace.core.record import Record

# Chosen: a second on one core. Rows of larger modules are not looked for.
_MOST_PRODUCTS = 10**11
_MOST_ROWS = 8192  # chosen: their distances from each other take 256 MB
# Chosen: far more than rounding moves a token, and far less than tokens differ by.
_LITTLE = 0.01

_Rows = dict[MicrobatchKey, torch.Tensor]


def with_routing(strand: Strand, batch: Batch, reference: Source, candidate: Source) -> Batch:
    """The candidate's batch, with the rows of every module that orders its tokens."""
    if not any(map(batch.splits, batch.parts)):
        return batch
    others, unknown = [], set()
    for id_ in _lists_of_experts(strand, batch, reference, candidate):
        rows = _rows_of(id_, reference, candidate)
        others += [] if rows is None else [replace(rows, within=id_.module, holds_own=True)]
    lists = [other.within for other in others]
    for id_, count in _routers(strand, reference):
        rows = _rows_inside(id_, count, reference, candidate)
        if rows is not None:
            others.append(rows)
        elif not any(module.startswith(f"{id_.module}.") for module in lists):
            unknown.add(id_.module)
    return replace(batch, others=(*batch.others, *others), unknown=frozenset(unknown))


def _lists_of_experts(
    strand: Strand, batch: Batch, reference: Source, candidate: Source
) -> Iterator[TensorId]:
    """What modules of a list get, where ranks get other shares of it than of the samples."""
    given: dict[str, list[TensorId]] = defaultdict(list)
    for id_, records in reference.trace.by_id().items():
        parent, _, name = id_.module.rpartition(".")
        is_input = id_.kind is Kind.INPUT and name.isdigit() and not id_.call
        if is_input and len(records[0].shape) == 2 and strand_of(reference.trace, id_) == strand:
            given[parent].append(id_)
    for ids in given.values():
        if any(_is_shared_out(id_, batch, reference, candidate) for id_ in ids):
            yield from ids


def _is_shared_out(id_: TensorId, batch: Batch, reference: Source, candidate: Source) -> bool:
    """Whether ranks hold all of its rows together, but not as many as their samples make."""
    whole, parts = _stored(reference, id_), _stored(candidate, id_)
    if len(whole) != 1 or sum(record.shape[0] for record in parts) != whole[0].shape[0]:
        return False
    rows = {MicrobatchKey(id_.step, r.rank, r.microbatch): r.shape[0] for r in parts}
    kinds = (batch, *batch.others)
    return not any(
        all(rows[key] * kind.sizes[id_.step] == kind.held(key) * whole[0].shape[0] for key in rows)
        for kind in kinds
        if id_.step in kind.sizes
    )


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
    rows = _rows_of(first.id, reference, candidate)
    return None if rows is None else replace(rows, within=id_.module)


def _rows_of(id_: TensorId, reference: Source, candidate: Source) -> Batch | None:
    """Where the rows of a tensor stand in the reference's; None where nothing tells."""
    expected, found = _loaded(reference, id_), _loaded(candidate, id_)
    slopes = [_loaded(source, _gradient(id_)) for source in (reference, candidate)]
    if slopes[0].keys() == expected.keys() and slopes[1].keys() == found.keys():
        expected, found = _told_apart(expected, slopes[0]), _told_apart(found, slopes[1])
    known = next(iter(expected.values()), None)
    rows = None if known is None else _nearest(known, found)
    if known is None or rows is None:
        return None
    parts = {key: Part(normalise(Run(row, 1) for row in held)) for key, held in rows.items()}
    return Batch(sizes={id_.step: len(known)}, parts=parts)


def _made_inside(reference: Source, id_: TensorId, count: int) -> Iterator[Record]:
    for other in reference.trace.by_id():
        if other.step == id_.step and other.module.startswith(f"{id_.module}."):
            stored = _stored(reference, other)
            forward = other.kind in (Kind.INPUT, Kind.OUTPUT)
            if forward and len(stored) == 1 and stored[0].shape[:1] == (count,):
                yield stored[0]


def _gradient(id_: TensorId) -> TensorId:
    return replace(id_, kind=Kind.GRAD_INPUT if id_.kind is Kind.INPUT else Kind.GRAD_OUTPUT)


def _loaded(source: Source, id_: TensorId) -> _Rows:
    """The rows of every microbatch, each flat."""
    return {
        MicrobatchKey(id_.step, record.rank, record.microbatch): loaded.flatten(1).float()
        for record in _stored(source, id_)
        if (loaded := source.spans.load(record)).ndim > 1
    }


def _told_apart(rows: _Rows, gradients: _Rows) -> _Rows:
    """Rows with a little of their gradients, whatever the scale of the loss is."""
    size, slope = (
        torch.cat([tensor.flatten() for tensor in held.values()]).square().mean().sqrt()
        for held in (rows, gradients)
    )
    if not slope or any(rows[key].shape != gradients[key].shape for key in rows):
        return rows
    little = _LITTLE * size / slope
    return {key: torch.cat([rows[key], little * gradients[key]], dim=1) for key in rows}


def _stored(source: Source, id_: TensorId) -> list[Record]:
    records = source.trace.by_id().get(id_, ())
    return [record for record in records if record.location is not None and not record.recompute]


def _nearest(known: torch.Tensor, held: _Rows) -> dict[MicrobatchKey, list[int]] | None:
    """For every row one of the reference's, the nearest that no nearer row has."""
    count = sum(map(len, held.values()))
    if any(tensor.shape[1] != known.shape[1] for tensor in held.values()):
        return None
    if count != len(known) or count > _MOST_ROWS or count * known.numel() > _MOST_PRODUCTS:
        return None
    distances = torch.cdist(torch.cat(list(held.values())), known)
    places = torch.full((count,), -1)
    left = torch.arange(count)
    while len(left):
        # Of equal tokens all may be nearest to one row: each round gives it to one of them.
        nearest, chosen = distances[left].min(dim=1)
        for index in nearest.argsort(stable=True).tolist():
            if bool(distances[left[index], chosen[index]].isfinite()):
                places[left[index]] = chosen[index]
                distances[:, chosen[index]] = torch.inf
        left = (places < 0).nonzero().flatten()
    parts = places.split([len(tensor) for tensor in held.values()])
    return {key: part.tolist() for key, part in zip(held, parts, strict=True)}
