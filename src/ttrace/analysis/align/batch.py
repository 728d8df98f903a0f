"""Which part of the global batch does each microbatch of each rank hold?

Data-parallel ranks and accumulated microbatches are shards of the batch dimension, context-parallel
ranks of the positions. Who holds what is decided by samplers and slicing that no framework exposes,
so it is read off the data: the rows of the candidate's model input are looked up among the rows of
the reference's (align.lookup). Pipeline stages that see no model input hold what the first stage
held.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from ttrace.analysis.align.lookup import Rows, digest, find_chunks, find_rows
from ttrace.core.ids import Kind, TensorId
from ttrace.core.layout import Run, Runs
from ttrace.core.record import RankInfo, Record
from ttrace.trace.reader import Trace
from ttrace.trace.spans import SpanReader

Shard = tuple[int, int, int]  # step, rank, microbatch


@dataclass(frozen=True, slots=True)
class Part:
    """Runs of samples in the global batch, and of positions; no positions: whole sequences."""

    samples: Runs
    positions: Runs = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The part of every (step, rank, microbatch) in the global batch of that step."""

    sizes: dict[int, int]  # step -> number of samples
    parts: dict[Shard, Part]
    rows: dict[int, tuple[str, ...]] = field(default_factory=dict)  # step -> digest of every sample
    lengths: dict[int, int] = field(default_factory=dict)  # step -> positions, where ranks split it
    dim: int = 0
    notes: tuple[str, ...] = ()

    def held(self, shard: Shard) -> int:
        """How many samples, whole or not."""
        return _count(self.parts[shard].samples) if shard in self.parts else 0

    def held_positions(self, shard: Shard) -> int:
        """How many positions of every sample; 0 when sequences are whole."""
        return _count(self.parts[shard].positions) if shard in self.parts else 0

    def splits(self, shard: Shard) -> bool:
        """Whether this microbatch is less than the whole batch, or in another order."""
        return shard in self.parts and self.parts[shard] != Part((Run(0, self.sizes[shard[0]]),))

    def reorders(self, shard: Shard) -> bool:
        """Whether this microbatch is the whole batch in another order."""
        whole = self.held(shard) == self.sizes.get(shard[0])
        return whole and self.splits(shard) and not self.held_positions(shard)

    def splits_of_batch(self) -> tuple[int, ...]:
        """Into how many parts the batch is split: over ranks, over microbatches, over both."""
        parts = {(part, microbatch) for (_, _, microbatch), part in self.parts.items()}
        microbatches = len({microbatch for _, microbatch in parts}) or 1
        sequences = len({part.positions for part, _ in parts}) or 1
        ranks = max(1, len(parts) // microbatches)
        return tuple(sorted({len(parts) or 1, microbatches, ranks, sequences, ranks // sequences}))

    def peers(self, shard: Shard) -> tuple[int, ...]:
        """The ranks that hold the same part in the same microbatch, in order."""
        step, _, microbatch = shard
        mine = self.parts.get(shard)
        return tuple(
            sorted(
                rank
                for (s, rank, m), part in self.parts.items()
                if s == step and m == microbatch and part == mine
            )
        )


def own_batch(trace: Trace, spans: SpanReader) -> Batch:
    """The batch of a trusted trace: microbatches by data-parallel index, then number."""
    sizes: dict[int, int] = {}
    parts: dict[Shard, Part] = {}
    rows: dict[int, tuple[str, ...]] = {}
    for step, inputs in _model_inputs(trace, spans).items():
        digests = {shard: [digest(row) for row in held] for shard, held in inputs.items()}
        order: list[str] = []
        placed: dict[object, Part] = {}
        for shard in _in_order(trace, digests):
            key = _group(trace, shard, digests[shard])
            if key not in placed:
                placed[key] = Part((Run(len(order), len(digests[shard])),))
                order += digests[shard]
            parts[shard] = placed[key]
        sizes[step] = len(order)
        rows[step] = tuple(order)
        parts |= _adopted(trace, step, parts)
    return Batch(sizes=sizes, parts=parts, rows=rows)


def match_batches(
    reference: Trace,
    candidate: Trace,
    *,
    reference_spans: SpanReader,
    candidate_spans: SpanReader,
) -> tuple[Batch, Batch]:
    """The batches of both, in the order of the reference's samples.

    A candidate that holds the whole batch in one piece sets the order instead: tensors without a
    batch dim could not be told from reordered ones, nor whole sequences from parts of them.
    """
    ours, theirs = own_batch(reference, reference_spans), own_batch(candidate, candidate_spans)
    our_rows = _model_inputs(reference, reference_spans)
    their_rows = _model_inputs(candidate, candidate_spans)
    if not any(map(theirs.splits, theirs.parts)):
        matched = match_batch(reference, our_rows, theirs, their_rows)
        if not matched.notes:
            return matched, theirs
    return ours, match_batch(candidate, their_rows, ours, our_rows)


def match_batch(
    trace: Trace,
    inputs: Mapping[int, Mapping[Shard, Rows]],
    base: Batch,
    base_inputs: Mapping[int, Mapping[Shard, Rows]],
) -> Batch:
    """The batch of one trace, every row, or part of a row, found among the rows of another."""
    parts: dict[Shard, Part] = {}
    lengths: dict[int, int] = {}
    notes: list[str] = []
    for step, held in inputs.items():
        if step not in base.sizes:
            continue
        order = _in_order(trace, held)
        rows = {shard: held[shard] for shard in order}
        keys = {shard: _group(trace, shard, [digest(r) for r in held[shard]]) for shard in order}
        whole = find_rows(rows, keys, base.rows[step])
        found = None if whole is None else {s: Part(runs) for s, runs in whole.items()}
        if found is None and (samples := _samples(base, step, base_inputs)) is not None:
            chunks = find_chunks(rows, keys, samples)
            if chunks is not None:
                found = {shard: Part(*runs) for shard, runs in chunks.items()}
                lengths[step] = len(samples[0])
        if found is None:
            notes.append(
                f"step {step}: the candidate's model inputs are not rows of the reference's; "
                "samples are placed by data-parallel index and microbatch number instead"
            )
            found = _by_position(order, keys, rows)
        parts |= found
        parts |= _adopted(trace, step, parts)
    return Batch(sizes=base.sizes, parts=parts, rows=base.rows, lengths=lengths, notes=tuple(notes))


def _samples(
    base: Batch, step: int, inputs: Mapping[int, Mapping[Shard, Rows]]
) -> list[torch.Tensor] | None:
    """Every sample of a batch of whole sequences of one length, in order."""
    samples: dict[int, torch.Tensor] = {}
    for shard, rows in inputs.get(step, {}).items():
        if shard not in base.parts or base.held_positions(shard):
            return None
        indices = [i for run in base.parts[shard].samples for i in _indices(run)]
        samples |= dict(zip(indices, rows, strict=False))
    shapes = {tuple(row.shape) for row in samples.values()}
    if len(shapes) != 1 or not next(iter(shapes)) or sorted(samples) != list(range(len(samples))):
        return None
    return [samples[index] for index in range(len(samples))]


def _by_position(
    order: list[Shard], keys: Mapping[Shard, object], rows: Mapping[Shard, Rows]
) -> dict[Shard, Part]:
    parts: dict[Shard, Part] = {}
    placed: dict[object, Part] = {}
    start = 0
    for shard in order:
        if keys[shard] not in placed:
            placed[keys[shard]] = Part((Run(start, len(rows[shard])),))
            start += len(rows[shard])
        parts[shard] = placed[keys[shard]]
    return parts


def _adopted(trace: Trace, step: int, parts: Mapping[Shard, Part]) -> dict[Shard, Part]:
    """Parts of ranks that see no model input: those of the rank that stands nearest to them."""
    donors = {rank for s, rank, _ in parts if s == step}
    adopted: dict[Shard, Part] = {}
    for rank, found in trace.ranks.items():
        info = found.info
        near = [d for d in donors if trace.ranks[d].info.batch == info.batch]
        if rank in donors or not near:
            continue
        donor = max(near, key=lambda d: (_common_axes(trace.ranks[d].info, info), -d))
        for (s, owner, microbatch), part in parts.items():
            if (s, owner) == (step, donor):
                adopted[step, rank, microbatch] = part
    return adopted


def _common_axes(one: RankInfo, other: RankInfo) -> int:
    return len(one.axes.items() & other.axes.items())


def _group(trace: Trace, shard: Shard, digests: list[str]) -> object:
    """Ranks of one group hold the same samples: by data-parallel index, or by content."""
    batch = trace.ranks[shard[1]].info.batch
    return (tuple(digests) if batch is None else batch[0], shard[2])


def _in_order(trace: Trace, shards: Mapping[Shard, object]) -> list[Shard]:
    def index(shard: Shard) -> tuple[int, int]:
        batch = trace.ranks[shard[1]].info.batch
        return shard[1] if batch is None else batch[0], shard[2]

    return sorted(shards, key=index)


def _model_inputs(trace: Trace, spans: SpanReader) -> dict[int, dict[Shard, Rows]]:
    """The tensor that tells samples apart: the first integer input of the first module called."""
    inputs: dict[int, dict[Shard, Rows]] = defaultdict(dict)
    for step in trace.steps:
        candidates = [
            (id_, records)
            for id_, records in trace.by_id().items()
            if id_.step == step and id_.kind is Kind.INPUT and id_.call == 0 and records[0].shape
        ]
        if candidates:
            _, records = min(candidates, key=lambda item: _preference(*item))
            for record in records:
                if not record.recompute:
                    rows = tuple(spans.load(record))
                    inputs[step][step, record.rank, record.microbatch] = rows
    return inputs


def _preference(id_: TensorId, records: list[Record]) -> tuple[bool, bool, int]:
    integer = records[0].dtype.startswith(("int", "uint"))
    return id_.module != "", not integer, min(record.sequence for record in records)


def _count(runs: Runs) -> int:
    return sum(run.length for run in runs)


def _indices(run: Run) -> range:
    start = run.start or 0
    return range(start, start + run.length)
