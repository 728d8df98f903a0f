"""How the samples of two traces correspond, read off the content of the models' inputs.

Enters: the batches of both traces. Leaves: both in one order of samples. The rows of one model
input are looked up among the rows of the other (align/lookup.py). Rows that are not found were
computed by another model, and differ by rounding: microbatches of data tell which of their samples
a rank has, and the computed rows of as many samples lie in their own microbatch in the same way.
Where nothing tells, rows are placed by data-parallel index and microbatch number, and that is said.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import torch

from ttrace.analysis.align.lookup import find_blocks, find_chunks, find_padded, find_rows
from ttrace.analysis.align.pointers import with_pointers
from ttrace.analysis.align.routing import with_routing
from ttrace.analysis.batch import (
    WHOLE,
    Batch,
    Batches,
    MicrobatchKey,
    Part,
    Rows,
    RowsOf,
    Strand,
    adopted,
    digest,
    group_of,
    in_order,
)
from ttrace.analysis.sources import Source
from ttrace.core.layout import Run, normalise
from ttrace.trace.reader import Trace


def match_batches(reference: Source, candidate: Source) -> tuple[Batches, Batches]:
    """The batches of all models in both, in the order of the reference's samples."""
    strands = dict.fromkeys((*reference.model_inputs, *candidate.model_inputs))
    found = {strand: _match_strand(strand, reference, candidate) for strand in strands}
    sure = [matched for matched in found.values() if not matched[1].notes]
    for strand, (_, unsure) in found.items():
        followed = _followed(strand, reference, candidate, sure) if unsure.notes else None
        found[strand] = followed or found[strand]
    return (
        {strand: matched[0] for strand, matched in found.items()},
        {strand: matched[1] for strand, matched in found.items()},
    )


def _followed(
    strand: Strand, reference: Source, candidate: Source, sure: Sequence[Matched]
) -> Matched | None:
    """What another model computed lies as the data from which it did."""
    choice = _choices(strand, reference, candidate)[0]
    trace, base = candidate.trace, reference.batch_by(strand, choice)
    parts: dict[MicrobatchKey, Part] = {}
    for step, held in candidate.inputs_of(strand).rows(choice).items():
        if step in base.sizes:
            found = follow(*_grouped(trace, held), base, sure)
            if found is None:
                return None
            parts |= found
            parts |= adopted(trace, step, parts)
    return base, replace(base, parts=parts)


def _match_strand(strand: Strand, reference: Source, candidate: Source) -> Matched:
    """Samples are told apart by the first input whose rows are found again."""
    first = None
    for choice in _choices(strand, reference, candidate):
        found = _match_by(strand, choice, reference, candidate)
        if not found[1].notes:
            batch = with_pointers(strand, choice, found, reference, candidate)
            return found[0], with_routing(strand, batch, reference, candidate)
        first = first or found
    return first or (reference.batch_of(strand), candidate.batch_of(strand))


def _choices(strand: Strand, reference: Source, candidate: Source) -> list[RowsOf]:
    theirs = candidate.inputs_of(strand).choices()
    return [choice for choice in reference.inputs_of(strand).choices() if choice in theirs]


def _match_by(strand: Strand, choice: RowsOf, reference: Source, candidate: Source) -> Matched:
    """A candidate that holds the whole batch in one piece sets the order instead.

    Tensors without a batch dim could not be told from reordered ones, nor whole sequences from
    parts of them.
    """
    own = candidate.batch_by(strand, choice)
    if not any(map(own.splits, own.parts)):
        matched = _match(strand, choice, reference, candidate)
        if not matched.notes:
            return matched, own
    return reference.batch_by(strand, choice), _match(strand, choice, candidate, reference)


def _match(strand: Strand, choice: RowsOf, source: Source, other: Source) -> Batch:
    """The batch of one trace, every row, or part of a row, found among the rows of another."""
    trace, base = source.trace, other.batch_by(strand, choice)
    parts: dict[MicrobatchKey, Part] = {}
    lengths: dict[int, int] = {}
    notes: list[str] = []
    others = other.inputs_of(strand).rows(choice)
    for step, held in source.inputs_of(strand).rows(choice).items():
        if step not in base.sizes:
            continue
        rows, groups = _grouped(trace, held)
        among = {} if choice.dim == WHOLE else others.get(step, {})
        found, length = _find(rows, groups, base, step, among)
        if found is None:
            notes.append(
                f"step {step}: the candidate's model inputs are not rows of the reference's; "
                "samples are placed by data-parallel index and microbatch number instead"
            )
            found = _by_position(groups, rows)
        lengths |= {step: length} if length else {}
        parts |= found
        parts |= adopted(trace, step, parts)
    return Batch(
        sizes=base.sizes,
        parts=parts,
        rows=base.rows,
        lengths=lengths,
        dim=max(choice.dim, 0),
        notes=tuple(notes),
    )


def _grouped(
    trace: Trace, held: Mapping[MicrobatchKey, Rows]
) -> tuple[dict[MicrobatchKey, Rows], dict[MicrobatchKey, object]]:
    """Rows in the order of the batch, and which of them are the same ones on several ranks."""
    rows = {key: held[key] for key in in_order(trace, held)}
    return rows, {key: group_of(trace, key, [digest(r) for r in rows[key]]) for key in rows}


def _find(
    rows: Mapping[MicrobatchKey, Rows],
    groups: Mapping[MicrobatchKey, object],
    base: Batch,
    step: int,
    others: Mapping[MicrobatchKey, Rows],
) -> tuple[dict[MicrobatchKey, Part] | None, int]:
    """The part of every microbatch, and the length of samples where some hold less of them."""
    # The reference has samples a b c d of 8 tokens. A microbatch of the candidate may hold
    #     c d                    samples [2:4], whole
    #     c[0:4] d[0:4]          samples [2:4], positions [0:4] of 8 (context parallelism)
    #     c[0:6] d[0:6], padded  samples [2:4], in the span [0:6] of 8
    #     x y                    not found
    known = base.rows[step]
    # Numbers, not samples: as many are equal, only their neighbours tell them apart.
    are_numbers = any(row.ndim == 0 for held in rows.values() for row in held)
    look = find_blocks if are_numbers and len(set(known)) < len(known) else find_rows
    whole = look(rows, groups, known)
    if whole is not None:
        longest = base.lengths.get(step, 0)  # of samples that the other run pads differently
        spans = {key: Run(0, len(rows[key][0])) for key in rows if longest and len(rows[key])}
        return {
            key: Part(runs, span=_shorter(spans.get(key), longest)) for key, runs in whole.items()
        }, longest
    samples = _samples(base, step, others)
    if samples is None:
        return None, 0
    chunks = find_chunks(rows, groups, samples)
    if chunks is not None:
        return {key: Part(*runs) for key, runs in chunks.items()}, len(samples[0])
    padded = find_padded(rows, groups, samples)
    if padded is None:
        return None, 0
    longest = len(samples[0])
    return {
        key: Part(runs, span=_shorter(span, longest)) for key, (runs, span) in padded.items()
    }, longest


def _shorter(span: Run | None, longest: int) -> Run | None:
    return None if span is None or span.length == longest else span


def _samples(
    base: Batch, step: int, inputs: Mapping[MicrobatchKey, Rows]
) -> list[torch.Tensor] | None:
    """Every sample of a batch of whole sequences of one length, in order."""
    samples: dict[int, torch.Tensor] = {}
    for key, rows in inputs.items():
        if key not in base.parts or base.held_positions(key):
            return None
        samples |= dict(zip(base.parts[key].indices, rows, strict=False))
    shapes = {tuple(row.shape) for row in samples.values()}
    if len(shapes) != 1 or not next(iter(shapes)) or sorted(samples) != list(range(len(samples))):
        return None
    return [samples[index] for index in range(len(samples))]


def _by_position(
    groups: Mapping[MicrobatchKey, object],
    rows: Mapping[MicrobatchKey, Rows],
) -> dict[MicrobatchKey, Part]:
    parts: dict[MicrobatchKey, Part] = {}
    placed: dict[object, Part] = {}
    start = 0
    for key in rows:
        if groups[key] not in placed:
            placed[groups[key]] = Part((Run(start, len(rows[key])),))
            start += len(rows[key])
        parts[key] = placed[groups[key]]
    return parts


Matched = tuple[Batch, Batch]  # of the reference, and of the candidate in its order
Groups = Mapping[MicrobatchKey, object]


def follow(
    rows: Mapping[MicrobatchKey, Rows], groups: Groups, base: Batch, others: Sequence[Matched]
) -> dict[MicrobatchKey, Part] | None:
    """The parts of the rows of one step; None where neither data nor other models tell them.

    `base` is the reference's batch of the same model, `others` are those of other models.
    """
    parts: dict[MicrobatchKey, Part] = {}
    for microbatch in sorted({key.microbatch for key in rows}):
        mine = {key: held for key, held in rows.items() if key.microbatch == microbatch}
        parts |= _by_content(mine, groups, base)
    for key, held in rows.items():
        if key not in parts:
            known = (*others, (base, replace(base, parts=parts)))
            part = next(_like_others(key, len(held), base, known), None)
            if part is None:
                return None
            parts[key] = part
    return parts


def _by_content(
    rows: Mapping[MicrobatchKey, Rows], groups: Groups, base: Batch
) -> dict[MicrobatchKey, Part]:
    """Of one microbatch."""
    key = next(iter(rows))
    block = _block(base, key)
    samples = base.rows[key.step]
    found = find_rows(rows, groups, [samples[index] for index in block]) or {}
    return {
        key: Part(normalise(Run(block[i], 1) for run in runs for i in run.indices))
        for key, runs in found.items()
    }


def _like_others(
    key: MicrobatchKey, count: int, base: Batch, others: Sequence[Matched]
) -> Iterator[Part]:
    block = _block(base, key)
    for reference, candidate in others:
        for other, part in candidate.parts.items():
            if (other.rank, other.step) != (key.rank, key.step) or part.positions or part.span:
                continue
            data, indices = _block(reference, other), part.indices
            if len(data) == len(block) and len(indices) == count and set(indices) <= set(data):
                yield Part(normalise(Run(block[data.index(i)], 1) for i in indices))


def _block(base: Batch, of: MicrobatchKey) -> list[int]:
    """The samples of one microbatch, of all ranks, in the order of the batch."""
    held = (
        part.indices
        for key, part in base.parts.items()
        if (key.step, key.microbatch) == (of.step, of.microbatch)
    )
    return sorted({index for indices in held for index in indices})
