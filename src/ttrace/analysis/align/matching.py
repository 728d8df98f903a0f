"""How the samples of two traces correspond, read off the content of the models' inputs.

Enters: the batches of both traces. Leaves: both in one order of samples. The rows of one model
input are looked up among the rows of the other (align/lookup.py); rows that are not found are
placed by data-parallel index and microbatch number, and that is said.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from ttrace.analysis.align.lookup import find_blocks, find_chunks, find_padded, find_rows
from ttrace.analysis.align.pointers import with_pointers
from ttrace.analysis.align.routing import with_routing
from ttrace.analysis.batch import (
    Batch,
    MicrobatchKey,
    Part,
    Rows,
    adopted,
    digest,
    group_of,
    in_order,
)
from ttrace.analysis.inputs import WHOLE, RowsOf
from ttrace.analysis.sources import Source
from ttrace.core.layout import Run


def match_batches(reference: Source, candidate: Source) -> tuple[Batch, Batch]:
    """The batches of both, in the order of the reference's samples.

    They are told apart by the first input whose rows are found again.
    """
    theirs = candidate.model_inputs.choices()
    choices = [choice for choice in reference.model_inputs.choices() if choice in theirs]
    if not choices:
        return reference.batch, candidate.batch
    first = None
    for choice in choices:
        found = _match_by(choice, reference, candidate)
        if not found[1].notes:
            batch = with_pointers(choice, found, reference, candidate)
            return found[0], with_routing(batch, reference, candidate)
        first = first or found
    assert first is not None
    return first


def _match_by(choice: RowsOf, reference: Source, candidate: Source) -> tuple[Batch, Batch]:
    """A candidate that holds the whole batch in one piece sets the order instead.

    Tensors without a batch dim could not be told from reordered ones, nor whole sequences from
    parts of them.
    """
    own = candidate.batch_by(choice)
    if not any(map(own.splits, own.parts)):
        matched = _match(choice, reference, candidate)
        if not matched.notes:
            return matched, own
    return reference.batch_by(choice), _match(choice, candidate, reference)


def _match(choice: RowsOf, source: Source, other: Source) -> Batch:
    """The batch of one trace, every row, or part of a row, found among the rows of another."""
    trace, base = source.trace, other.batch_by(choice)
    parts: dict[MicrobatchKey, Part] = {}
    lengths: dict[int, int] = {}
    notes: list[str] = []
    others = other.model_inputs.rows(choice)
    for step, held in source.model_inputs.rows(choice).items():
        if step not in base.sizes:
            continue
        order = in_order(trace, held)
        rows = {key: held[key] for key in order}
        groups = {key: group_of(trace, key, [digest(r) for r in held[key]]) for key in order}
        among = {} if choice.dim == WHOLE else others.get(step, {})
        found, length = _find(rows, groups, base, step, among)
        if found is None:
            notes.append(
                f"step {step}: the candidate's model inputs are not rows of the reference's; "
                "samples are placed by data-parallel index and microbatch number instead"
            )
            found = _by_position(order, groups, rows)
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


def _find(
    rows: Mapping[MicrobatchKey, Rows],
    groups: Mapping[MicrobatchKey, object],
    base: Batch,
    step: int,
    others: Mapping[MicrobatchKey, Rows],
) -> tuple[dict[MicrobatchKey, Part] | None, int]:
    """The part of every microbatch, and the length of samples where some hold less of them."""
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
    order: list[MicrobatchKey],
    groups: Mapping[MicrobatchKey, object],
    rows: Mapping[MicrobatchKey, Rows],
) -> dict[MicrobatchKey, Part]:
    parts: dict[MicrobatchKey, Part] = {}
    placed: dict[object, Part] = {}
    start = 0
    for key in order:
        if groups[key] not in placed:
            placed[groups[key]] = Part((Run(start, len(rows[key])),))
            start += len(rows[key])
        parts[key] = placed[groups[key]]
    return parts
