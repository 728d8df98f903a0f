"""Which samples of the global batch does each microbatch of each rank hold?

Data-parallel ranks and accumulated microbatches are shards of the batch dimension. Which samples
went where is decided by samplers that no framework exposes, so it is read off the data: the rows of
the candidate's model input are looked up among the rows of the reference's.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
import xxhash

from ttrace.core.ids import Kind, TensorId
from ttrace.core.layout import Run, Runs, normalise
from ttrace.core.reader import Trace
from ttrace.core.record import Record
from ttrace.core.spans import SpanReader

Shard = tuple[int, int, int]  # step, rank, microbatch


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The samples of every (step, rank, microbatch), as runs in the global batch of that step."""

    sizes: dict[int, int]  # step -> number of samples
    samples: dict[Shard, Runs]
    rows: dict[int, tuple[str, ...]] = field(default_factory=dict)  # step -> digest of every sample
    dim: int = 0
    notes: tuple[str, ...] = ()

    def held(self, shard: Shard) -> int:
        return sum(run.length for run in self.samples.get(shard, ()))

    def splits(self, shard: Shard) -> bool:
        """Whether this microbatch is less than the whole batch, or in another order."""
        return shard in self.samples and self.samples[shard] != (Run(0, self.sizes[shard[0]]),)

    def splits_of_batch(self) -> tuple[int, ...]:
        """Into how many parts the batch is split: over ranks, over microbatches, over both."""
        parts = {(rank_runs, microbatch) for (_, _, microbatch), rank_runs in self.samples.items()}
        microbatches = len({microbatch for _, microbatch in parts}) or 1
        return tuple(sorted({len(parts) or 1, microbatches, max(1, len(parts) // microbatches)}))

    def splits_of_loss(self, trace: Trace) -> tuple[int, ...]:
        """The same, and over ranks that hold parts of the sequence: each has its own loss."""
        context = max(rank.info.axes.get("cp", (0, 1))[1] for rank in trace.ranks.values())
        parts = self.splits_of_batch()
        return tuple(sorted({1, *parts, *(context * part for part in parts), context}))

    def peers(self, shard: Shard) -> tuple[int, ...]:
        """The ranks that hold the same samples in the same microbatch, in order."""
        step, _, microbatch = shard
        mine = self.samples.get(shard)
        return tuple(
            sorted(
                rank
                for (s, rank, m), runs in self.samples.items()
                if s == step and m == microbatch and runs == mine
            )
        )


def own_batch(trace: Trace, spans: SpanReader) -> Batch:
    """The batch of a trusted trace: microbatches by data-parallel index, then number."""
    sizes: dict[int, int] = {}
    samples: dict[Shard, Runs] = {}
    rows: dict[int, tuple[str, ...]] = {}
    for step, inputs in _model_inputs(trace).items():
        digests = {shard: _row_digests(record, spans) for shard, record in inputs.items()}
        order: list[str] = []
        placed: dict[object, Runs] = {}
        for shard in sorted(inputs, key=lambda shard: (_batch_index(trace, shard[1]), shard[2])):
            key = _group(trace, shard, digests[shard])
            if key not in placed:
                placed[key] = (Run(len(order), len(digests[shard])),)
                order += digests[shard]
            samples[shard] = placed[key]
        sizes[step] = len(order)
        rows[step] = tuple(order)
    return Batch(sizes=sizes, samples=samples, rows=rows)


def match_batches(
    reference: Trace,
    candidate: Trace,
    *,
    reference_spans: SpanReader,
    candidate_spans: SpanReader,
) -> tuple[Batch, Batch]:
    """The batches of both, in the order of the reference's samples.

    A candidate that holds the whole batch in one piece sets the order instead: tensors without a
    batch dim could not be told from reordered ones.
    """
    ours, theirs = own_batch(reference, reference_spans), own_batch(candidate, candidate_spans)
    same_samples = {step: sorted(rows) for step, rows in ours.rows.items()} == {
        step: sorted(rows) for step, rows in theirs.rows.items()
    }
    if same_samples and not any(map(theirs.splits, theirs.samples)):
        return match_batch(reference, reference_spans, theirs), theirs
    return ours, match_batch(candidate, candidate_spans, ours)


def match_batch(trace: Trace, spans: SpanReader, reference: Batch) -> Batch:
    """The batch of a candidate, every row found among the reference's rows."""
    samples: dict[Shard, Runs] = {}
    notes: list[str] = []
    for step, inputs in _model_inputs(trace).items():
        size = reference.sizes.get(step)
        if size is None:
            continue
        digests = {shard: _row_digests(record, spans) for shard, record in inputs.items()}
        found = _look_up(trace, digests, reference.rows[step])
        if found is None:
            notes.append(
                f"step {step}: the candidate's model inputs are not rows of the reference's; "
                f"samples are "
                "placed by data-parallel index and microbatch number instead"
            )
            found = _by_position(trace, digests)
        samples |= found
    return Batch(sizes=reference.sizes, samples=samples, rows=reference.rows, notes=tuple(notes))


def _look_up(
    trace: Trace, digests: dict[Shard, list[str]], rows: Iterable[str]
) -> dict[Shard, Runs] | None:
    where: dict[str, list[int]] = defaultdict(list)
    for index, digest in enumerate(rows):
        where[digest].append(index)
    samples: dict[Shard, Runs] = {}
    placed: dict[object, Runs] = {}
    used: dict[str, int] = defaultdict(int)
    for shard in sorted(digests, key=lambda shard: (_batch_index(trace, shard[1]), shard[2])):
        key = _group(trace, shard, digests[shard])
        if key not in placed:
            runs = []
            for digest in digests[shard]:
                if digest not in where:
                    return None
                # Equal rows stand several times in the batch: take them in order, then again.
                places = where[digest]
                runs.append(Run(places[used[digest] % len(places)], 1))
                used[digest] += 1
            placed[key] = normalise(runs)
        samples[shard] = placed[key]
    return samples


def _by_position(trace: Trace, digests: dict[Shard, list[str]]) -> dict[Shard, Runs]:
    samples: dict[Shard, Runs] = {}
    placed: dict[object, Runs] = {}
    start = 0
    for shard in sorted(digests, key=lambda shard: (_batch_index(trace, shard[1]), shard[2])):
        key = _group(trace, shard, digests[shard])
        if key not in placed:
            placed[key] = (Run(start, len(digests[shard])),)
            start += len(digests[shard])
        samples[shard] = placed[key]
    return samples


def _group(trace: Trace, shard: Shard, digests: list[str]) -> object:
    """Ranks of one group hold the same samples: by data-parallel index, or by content."""
    batch = trace.ranks[shard[1]].info.batch
    return (tuple(digests) if batch is None else batch[0], shard[2])


def _batch_index(trace: Trace, rank: int) -> int:
    batch = trace.ranks[rank].info.batch
    return rank if batch is None else batch[0]


def _model_inputs(trace: Trace) -> dict[int, dict[Shard, Record]]:
    """The record that tells samples apart: the first integer input of the first module called."""
    inputs: dict[int, dict[Shard, Record]] = defaultdict(dict)
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
                    inputs[step][step, record.rank, record.microbatch] = record
    return inputs


def _preference(id_: TensorId, records: list[Record]) -> tuple[bool, bool, int]:
    integer = records[0].dtype.startswith(("int", "uint"))
    return id_.module != "", not integer, min(record.sequence for record in records)


def _row_digests(record: Record, spans: SpanReader) -> list[str]:
    rows = spans.load(record)
    return [xxhash.xxh3_64_hexdigest(_bytes(row)) for row in rows]


def _bytes(row: torch.Tensor) -> bytes:
    return row.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
