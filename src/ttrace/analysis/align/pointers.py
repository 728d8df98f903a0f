"""Pointers: integer inputs that number the rows of their own microbatch, as edges and bounds do.

    edges [2, E]     each column names two nodes
    graph [N]        each node names its graph, in order
    bounds [D + 1]   where each packed document starts, and where the last one ends

Ranks count from zero, so that the numbers differ from the reference's although they name the same
rows. Enters: a batch whose rows are known. Leaves: it, with the rows that such inputs make (edges,
graphs, documents) and the bytes of the inputs that were understood.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from ttrace.analysis.align.lookup import find_rows
from ttrace.analysis.batch import (
    Batch,
    MicrobatchKey,
    Part,
    Pointers,
    RowsOf,
    Strand,
    digest,
    rows_along,
)
from ttrace.analysis.sources import Source
from ttrace.core.layout import Run, normalise

Held = Mapping[MicrobatchKey, torch.Tensor]
_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.uint8, torch.int8)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Side:
    """One run: what its microbatches hold of an input, and of the rows that it may point to."""

    held: Held
    batch: Batch

    def rows_of(self, key: MicrobatchKey) -> torch.Tensor:
        return torch.tensor(self.batch.parts[key].indices, dtype=torch.int64)


@dataclass(frozen=True, slots=True)
class _Found:
    """The rows that one input makes in one step: how many, and which of them each holds."""

    size: int
    parts: dict[MicrobatchKey, Part]


_Reading = Callable[[_Side, _Side], _Found | None]


def with_pointers(
    strand: Strand,
    choice: RowsOf,
    batches: tuple[Batch, Batch],
    reference: Source,
    candidate: Source,
) -> Batch:
    """The candidate's batch with all that its other inputs say of further rows."""
    batch = batches[1]
    if not any(map(batch.splits, batch.parts)):
        return batch
    others: list[Batch] = []
    pointers: set[tuple[MicrobatchKey, str]] = set()
    for name, ours in reference.inputs_of(strand).tensors.items():
        theirs = candidate.inputs_of(strand).tensors.get(name, {})
        made = None if name == choice.name or not theirs else _rows_of(ours, theirs, batches)
        if made is not None:
            others.append(made)
            pointers.update(_bytes([ours, theirs]))
    known: Pointers = frozenset(pointers)
    return replace(batch, others=tuple(others), pointers=known)


def _rows_of(
    ours: Mapping[int, Held], theirs: Mapping[int, Held], batches: tuple[Batch, Batch]
) -> Batch | None:
    """The rows that an input makes, by the first reading that fits all steps of the candidate."""
    for dim, reading in _READINGS:
        found = {
            step: reading(
                _Side(held=ours[step], batch=batches[0]), _Side(held=held, batch=batches[1])
            )
            for step, held in theirs.items()
            if step in ours
            if _are_read(ours[step], batches[0]) and _are_read(held, batches[1])
        }
        made = {step: rows for step, rows in found.items() if rows is not None}
        if made and len(made) == len(theirs):
            return _batch_of(made, dim)
    return None


def _are_read(held: Held, batch: Batch) -> bool:
    return all(tensor.dtype in _INTEGERS and key in batch.parts for key, tensor in held.items())


def _batch_of(made: Mapping[int, _Found], dim: int) -> Batch:
    return Batch(
        sizes={step: found.size for step, found in made.items()},
        parts={key: part for found in made.values() for key, part in found.parts.items()},
        dim=dim,
    )


def _bytes(sides: Sequence[Mapping[int, Held]]) -> Iterator[tuple[MicrobatchKey, str]]:
    """Of whole inputs and of their rows, which models give to their modules one by one."""
    for steps in sides:
        for key, tensor in ((k, t) for held in steps.values() for k, t in held.items()):
            yield key, digest(tensor)
            if tensor.ndim > 1 and len(tensor) <= _FEW:
                yield from ((key, digest(row)) for row in tensor)


_FEW = 8  # chosen: edges have two ends, hyperedges and triplets a few


def _named(side: _Side) -> dict[MicrobatchKey, torch.Tensor] | None:
    """Numbers of rows of a microbatch as numbers of rows of the batch."""
    named = {}
    for key, tensor in side.held.items():
        rows = side.rows_of(key)
        if not tensor.numel() or int(tensor.min()) < 0 or int(tensor.max()) >= len(rows):
            return None
        named[key] = rows[tensor.long()]
    return named


def _edges(dim: int) -> _Reading:
    """Every row along this dim names rows of the batch, the same ones in both runs."""

    def reading(reference: _Side, candidate: _Side) -> _Found | None:
        ours, theirs = _named(reference), _named(candidate)
        if ours is None or theirs is None or any(t.ndim != 2 for t in (*ours.values(),)):
            return None
        known: list[str] = []
        seen: set[Part] = set()
        for key, tensor in ours.items():
            if reference.batch.parts[key] not in seen:
                seen.add(reference.batch.parts[key])
                known += [digest(row) for row in rows_along(tensor, dim)]
        rows = {key: rows_along(tensor, dim) for key, tensor in theirs.items()}
        keys = {key: candidate.batch.parts[key] for key in rows}
        found = find_rows(rows, keys, known)
        if found is None:
            return None
        return _Found(len(known), {key: Part(runs) for key, runs in found.items()})

    return reading


def _groups(reference: _Side, candidate: _Side) -> _Found | None:
    """Every row of the batch names its group; groups are counted in order, each wholly held."""
    in_order = _are_in_order(reference) and _are_in_order(candidate)
    return _same_groups(reference, candidate) if in_order else None


def _same_groups(reference: _Side, candidate: _Side) -> _Found | None:
    """The groups of the candidate among those of the reference, by the rows that they hold."""
    ours = dict.fromkeys(members for key in reference.held for members in _members(reference, key))
    numbers = {members: number for number, members in enumerate(ours)}
    parts = {}
    for key in candidate.held:
        mine = _members(candidate, key)
        if any(members not in numbers for members in mine):
            return None
        parts[key] = Part(normalise(Run(numbers[members], 1) for members in mine))
    return _Found(len(numbers), parts)


def _members(side: _Side, key: MicrobatchKey) -> list[tuple[int, ...]]:
    """The rows of every group."""
    rows, groups = side.rows_of(key), side.held[key]
    return [tuple(rows[groups == group].tolist()) for group in range(int(groups.max()) + 1)]


def _are_in_order(side: _Side) -> bool:
    """0, 0, 1, 1, 1, 2: positions, which differ from row to row, are no groups."""
    for key, tensor in side.held.items():
        if tensor.ndim != 1 or len(tensor) != side.batch.held(key) or not len(tensor):
            return False
        steps = tensor[1:].long() - tensor[:-1].long()
        if int(tensor[0]) or not set(steps.tolist()) <= {0, 1} or bool((steps == 1).all()):
            return False
    return True


def _bounds(reference: _Side, candidate: _Side) -> _Found | None:
    """Where runs of rows start and end: the same as groups, told by their borders."""
    sides = [_grouped_by_bounds(side) for side in (reference, candidate)]
    ours, theirs = sides
    return None if ours is None or theirs is None else _same_groups(ours, theirs)


def _grouped_by_bounds(side: _Side) -> _Side | None:
    held = {}
    for key, tensor in side.held.items():
        if tensor.ndim != 1 or len(tensor) < 2 or int(tensor[0]):
            return None
        lengths = tensor[1:].long() - tensor[:-1].long()
        if int(lengths.min()) < 1 or int(tensor[-1]) != side.batch.held(key):
            return None
        held[key] = torch.repeat_interleave(torch.arange(len(lengths)), lengths)
    return _Side(held=held, batch=side.batch)


_READINGS: tuple[tuple[int, _Reading], ...] = (
    (0, _groups),
    (0, _bounds),
    (1, _edges(1)),
    (0, _edges(0)),
)
