"""Sums: records that add up to one value, over mesh axes and over microbatches.

Enters: records with their places. Leaves: pieces of a logical tensor. A partial sum over an axis
needs a term from each of its ranks; a loss, or the gradient of what all samples share, needs one
from every microbatch.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ttrace.analysis.align.holdings import Group, Holdings, without
from ttrace.core.ids import Kind, TensorId
from ttrace.core.layout import Layout
from ttrace.core.logical import Piece
from ttrace.core.record import Record


class Unplaceable(Exception):
    """A record whose place in the logical tensor cannot be told."""


@dataclass(frozen=True, slots=True)
class Placed:
    """A record and where it sits."""

    record: Record
    layout: Layout
    outer: Layout  # of the microbatch; the layout splits it further
    # Every microbatch holds the whole shape and contributes to the value, as to a loss.
    contributes: bool = False
    shared: bool = False  # the same for all samples, or for all positions
    absent: tuple[Layout, ...] = ()  # padding that nobody holds for these samples


@dataclass(frozen=True, slots=True)
class Term:
    """Records that add up to one value: a single one, or the terms of a partial sum."""

    layout: Layout
    records: tuple[Record, ...]
    contributes: bool


def pieces_of(holdings: Holdings, placed: Sequence[Placed]) -> list[Piece]:
    """Every piece that these records make up; Unplaceable where a term is missing."""
    terms = _terms(holdings, placed)
    return [
        *(Piece(layout=t.layout, records=t.records) for t in terms if not t.contributes),
        *_contributions(holdings, [term for term in terms if term.contributes]),
    ]


def _terms(holdings: Holdings, placed: Sequence[Placed]) -> list[Term]:
    """Partial sums over mesh axes put together; everything else is a term by itself."""
    groups: dict[object, list[Placed]] = defaultdict(list)
    for number, item in enumerate(placed):
        groups[_sum_key(holdings, item) if item.layout.partial else number].append(item)
    for group in groups.values():
        first = group[0]
        expected = _sum_size(holdings, first)
        if first.layout.partial and len(group) != expected:
            ranks = [item.record.rank for item in group]
            raise Unplaceable(
                f"a partial sum over {', '.join(first.layout.partial)} needs {expected} terms, "
                f"found {len(group)} (ranks {ranks}, microbatch {first.record.microbatch})"
            )
    return [
        Term(group[0].layout, tuple(i.record for i in group), group[0].contributes)
        for group in groups.values()
    ]


def _sum_key(holdings: Holdings, item: Placed) -> object:
    record, axes = item.record, item.layout.partial
    others = without(holdings.axes(record.rank), axes)
    part = None
    if item.contributes:
        # The layout does not say the samples then, and the axes need not either.
        near = [
            rank for rank in holdings.peers(record) if without(holdings.axes(rank), axes) == others
        ]
        if len(near) == _sum_size(holdings, item):
            part = holdings.part(record)
    return (
        item.layout,
        record.microbatch,
        record.recompute,
        tuple(sorted(others.items())),
        part,
    )


def _sum_size(holdings: Holdings, item: Placed) -> int:
    axes = holdings.axes(item.record.rank)
    return math.prod(axes[axis][1] for axis in item.layout.partial if axis in axes)


def _contributions(holdings: Holdings, terms: Sequence[Term]) -> Iterator[Piece]:
    """What every microbatch adds to, summed over all of them, once for every replica."""
    columns: dict[tuple[Layout, bool], dict[Group, list[Term]]] = defaultdict(dict)
    for term in terms:
        groups = columns[term.layout, term.records[0].recompute]
        groups.setdefault(holdings.group(term.records[0]), []).append(term)
    for (layout, recompute), groups in columns.items():
        if recompute:  # microbatches that were not recomputed keep their original
            groups |= {g: o for g, o in columns.get((layout, False), {}).items() if g not in groups}
        for nth in range(max(len(group) for group in groups.values())):
            # Groups may have replicas in different numbers.
            column = [group[min(nth, len(group) - 1)] for group in groups.values()]
            records = tuple(record for term in column for record in term.records)
            _require_all_groups(holdings, records)
            # An output that is one number a microbatch (an auxiliary loss) is taken as a mean.
            is_mean = records[0].id.kind in (Kind.OUTPUT, Kind.INPUT)
            factor = 1 / len(column) if is_mean else 1.0
            yield Piece(layout=column[0].layout, records=records, factor=factor)


def _require_all_groups(holdings: Holdings, records: Sequence[Record]) -> None:
    """A gradient has a term wherever its value was; a loss, in the same microbatches."""
    # Microbatches 0 and 1 of ranks 0 and 1, each with samples of its own, make four groups. A loss
    # with records of three of them lacks one; of a rank without samples, as in a pipeline, nothing.
    id_ = records[0].id
    if id_.kind.is_unreduced:
        return  # a parameter that a microbatch does not use gets nothing from it
    expected = _groups_of_loss(holdings, id_) if id_.kind is Kind.LOSS else _groups(holdings, id_)
    found = {holdings.group(record) for record in records}
    if all(part is not None and part.positions for part, _ in found):
        # The gradient of gathered sequences has terms from all that hold their positions.
        samples = {part.samples for part, _ in found if part is not None}
        expected = {g for g in expected if g[0] is not None and g[0].samples in samples}
    missing = sorted(microbatch for _, microbatch in expected - found)
    if missing:
        raise Unplaceable(
            f"a sum over {len(expected)} microbatches of all ranks lacks {len(missing)}: "
            f"microbatch {', '.join(map(str, missing))} where ranks "
            f"{sorted({record.rank for record in records})} hold the others"
        )


def _groups_of_loss(holdings: Holdings, id_: TensorId) -> set[Group]:
    """Of all ranks, in the microbatches in which any has a loss."""
    stored = {record.microbatch for record in holdings.trace.by_id()[id_]}
    shards = (key for key in holdings.batch.parts if key.step == id_.step)
    return {holdings.group_at(shard) for shard in shards if shard.microbatch in stored}


def _groups(holdings: Holdings, id_: TensorId) -> set[Group]:
    """Where the value was that a gradient is of."""
    return {holdings.group(record) for record in holdings.trace.by_id().get(id_.forward, ())}
