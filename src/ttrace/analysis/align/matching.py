"""How the samples of two traces correspond, read off the content of the models' inputs.

Enters: the batches of both traces. Leaves: both in one order of samples. The rows of one model
input are looked up among the rows of the other (align/lookup.py); rows that are not found are
placed by data-parallel index and microbatch number, and that is said.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from ttrace.analysis.align.follow import follow
from ttrace.analysis.align.lookup import find_chunks, find_rows
from ttrace.analysis.batch import (
    Batch,
    MicrobatchKey,
    ModelInputs,
    Part,
    Rows,
    Stream,
    adopted,
    digest,
    group_of,
    in_order,
)
from ttrace.analysis.sources import Source
from ttrace.core.layout import Run

_Held = dict[MicrobatchKey, Rows]


def match_batches(reference: Source, candidate: Source) -> tuple[Batch, Batch]:
    """The batches of both, in the order of the reference's samples.

    A candidate that holds the whole batch in one piece sets the order instead: tensors without a
    batch dim could not be told from reordered ones, nor whole sequences from parts of them.
    """
    if not any(map(candidate.batch.splits, candidate.batch.parts)):
        matched = _match(reference, candidate)
        if not matched.notes:
            return matched, candidate.batch
    return reference.batch, _match(candidate, reference)


def _match(source: Source, other: Source) -> Batch:
    """The batch of one trace, every row, or part of a row, found among the rows of another."""
    trace, base = source.trace, other.batch
    parts: dict[MicrobatchKey, Part] = {}
    lengths: dict[Stream, int] = {}
    notes: list[str] = []
    computed: list[tuple[_Held, dict[MicrobatchKey, object]]] = []
    for stream, held in source.model_inputs.items():
        if stream not in base.sizes:
            continue
        rows = {key: held[key] for key in in_order(trace, held)}
        groups = {key: group_of(trace, key, [digest(r) for r in rows[key]]) for key in rows}
        whole = find_rows(rows, groups, base.rows[stream])
        found = None if whole is None else {s: Part(runs) for s, runs in whole.items()}
        if found is None and (samples := _samples(base, stream, other.model_inputs)) is not None:
            chunks = find_chunks(rows, groups, samples)
            if chunks is not None:
                found = {key: Part(*runs) for key, runs in chunks.items()}
                lengths[stream] = len(samples[0])
        if found is None:
            computed.append((rows, groups))
        parts |= found or {}
    for rows, groups in computed:
        followed = follow(rows, groups, base, parts)
        if followed is None:
            step = next(iter(rows)).stream.step
            notes.append(
                f"step {step}: the candidate's model inputs are not rows of the reference's; "
                "samples are placed by data-parallel index and microbatch number instead"
            )
        parts |= followed or _by_position(groups, rows)
    for stream in base.sizes:
        parts |= adopted(trace, stream, parts)
    return Batch(sizes=base.sizes, parts=parts, rows=base.rows, lengths=lengths, notes=tuple(notes))


def _samples(base: Batch, stream: Stream, inputs: ModelInputs) -> list[torch.Tensor] | None:
    """Every sample of a batch of whole sequences of one length, in order."""
    samples: dict[int, torch.Tensor] = {}
    for key, rows in inputs.get(stream, {}).items():
        if key not in base.parts or base.held_positions(key):
            return None
        indices = [i for run in base.parts[key].samples for i in run.indices]
        samples |= dict(zip(indices, rows, strict=False))
    shapes = {tuple(row.shape) for row in samples.values()}
    if len(shapes) != 1 or not next(iter(shapes)) or sorted(samples) != list(range(len(samples))):
        return None
    return [samples[index] for index in range(len(samples))]


def _by_position(
    groups: Mapping[MicrobatchKey, object], rows: Mapping[MicrobatchKey, Rows]
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
