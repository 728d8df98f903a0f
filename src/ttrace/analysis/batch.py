"""The batch of one trace: which part of it each microbatch of each rank holds.

Data-parallel ranks and accumulated microbatches are keys of the batch dimension, context-parallel
ranks of the positions. Who holds what is decided by samplers and slicing that no framework exposes,
so it is read off the model's inputs, of several models each by its own. Pipeline stages that see no
model input hold what the first stage held. How the samples of two traces correspond is found by
align/matching.py.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
import xxhash

from ttrace.core.ids import Kind, TensorId, root_of
from ttrace.core.layout import Run, Runs
from ttrace.core.record import RankInfo, Record
from ttrace.trace.reader import Trace
from ttrace.trace.spans import SpanReader

Rows = Sequence[torch.Tensor]
ModelInputs = Mapping["Stream", Mapping["MicrobatchKey", Rows]]


class Stream(NamedTuple):
    """What one model works on in one step, with gradients or apart: it has samples of its own."""

    step: int
    root: str = ""
    apart: bool = False


class MicrobatchKey(NamedTuple):
    """One microbatch of one rank."""

    stream: Stream
    rank: int
    microbatch: int


@dataclass(frozen=True, slots=True)
class Part:
    """Runs of samples in the global batch, and of positions; no positions: whole sequences."""

    samples: Runs
    positions: Runs = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The part of every microbatch of every rank in the global batch of its stream."""

    sizes: dict[Stream, int]  # number of samples
    parts: dict[MicrobatchKey, Part]
    rows: dict[Stream, tuple[str, ...]] = field(default_factory=dict)  # digest of every sample
    lengths: dict[Stream, int] = field(default_factory=dict)  # positions, where ranks split them
    dim: int = 0
    notes: tuple[str, ...] = ()

    def held(self, key: MicrobatchKey) -> int:
        """How many samples, whole or not."""
        return _count(self.parts[key].samples) if key in self.parts else 0

    def held_positions(self, key: MicrobatchKey) -> int:
        """How many positions of every sample; 0 when sequences are whole."""
        return _count(self.parts[key].positions) if key in self.parts else 0

    def splits(self, key: MicrobatchKey) -> bool:
        """Whether this microbatch is less than the whole batch, or in another order."""
        return key in self.parts and self.parts[key] != Part((Run(0, self.sizes[key[0]]),))

    def reorders(self, key: MicrobatchKey) -> bool:
        """Whether this microbatch is the whole batch in another order."""
        whole = self.held(key) == self.sizes.get(key[0])
        return whole and self.splits(key) and not self.held_positions(key)

    def splits_of_batch(self) -> tuple[int, ...]:
        """Into how many parts the batch is split: over ranks, over microbatches, over both."""
        models: dict[str, set[tuple[Part, int]]] = defaultdict(set)
        for (stream, _, microbatch), part in self.parts.items():
            if not stream.apart:
                models[stream.root].add((part, microbatch))
        return tuple(sorted(set().union(*map(_splits, models.values())) or {1}))

    def peers(self, key: MicrobatchKey) -> tuple[int, ...]:
        """The ranks that hold the same part in the same microbatch, in order."""
        stream, _, microbatch = key
        mine = self.parts.get(key)
        return tuple(
            sorted(
                rank
                for (s, rank, m), part in self.parts.items()
                if s == stream and m == microbatch and part == mine
            )
        )


def digest(values: torch.Tensor) -> str:
    """The xxh3 of the bytes of a row, or of a part of one."""
    text: str = xxhash.xxh3_64_hexdigest(
        values.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    )
    return text


def own_batch(trace: Trace, inputs: ModelInputs) -> Batch:
    """The batch of a trusted trace: microbatches by data-parallel index, then number."""
    sizes: dict[Stream, int] = {}
    parts: dict[MicrobatchKey, Part] = {}
    rows: dict[Stream, tuple[str, ...]] = {}
    for stream, rows_of in inputs.items():
        digests = {key: [digest(row) for row in held] for key, held in rows_of.items()}
        order: list[str] = []
        placed: dict[object, Part] = {}
        for key in in_order(trace, digests):
            group = group_of(trace, key, digests[key])
            if group not in placed:
                placed[group] = Part((Run(len(order), len(digests[key])),))
                order += digests[key]
            parts[key] = placed[group]
        sizes[stream] = len(order)
        rows[stream] = tuple(order)
        parts |= adopted(trace, stream, parts)
    return Batch(sizes=sizes, parts=parts, rows=rows)


def adopted(
    trace: Trace, stream: Stream, parts: Mapping[MicrobatchKey, Part]
) -> dict[MicrobatchKey, Part]:
    """Parts of ranks that see no model input: those of the rank that stands nearest to them."""
    donors = {rank for s, rank, _ in parts if s == stream}
    taken: dict[MicrobatchKey, Part] = {}
    for rank, found in trace.ranks.items():
        info = found.info
        near = [d for d in donors if trace.ranks[d].info.batch == info.batch]
        if rank in donors or not near:
            continue
        donor = max(near, key=lambda d: (_common_axes(trace.ranks[d].info, info), -d))
        for (s, owner, microbatch), part in parts.items():
            if (s, owner) == (stream, donor):
                taken[MicrobatchKey(stream, rank, microbatch)] = part
    return taken


def _common_axes(one: RankInfo, other: RankInfo) -> int:
    return len(one.axes.items() & other.axes.items())


def group_of(trace: Trace, key: MicrobatchKey, digests: list[str]) -> object:
    """Ranks of one group hold the same samples: by data-parallel index, or by content."""
    batch = trace.ranks[key[1]].info.batch
    return (tuple(digests) if batch is None else batch[0], key[2])


def in_order(trace: Trace, keys: Mapping[MicrobatchKey, object]) -> list[MicrobatchKey]:
    def index(key: MicrobatchKey) -> tuple[int, int]:
        batch = trace.ranks[key[1]].info.batch
        return key[1] if batch is None else batch[0], key[2]

    return sorted(keys, key=index)


def read_model_inputs(trace: Trace, spans: SpanReader) -> ModelInputs:
    """Rows of the tensor that tells samples apart: the first integer input of the first module."""
    candidates: dict[Stream, list[tuple[TensorId, list[Record]]]] = defaultdict(list)
    for id_, records in trace.by_id().items():
        if id_.kind is Kind.INPUT and id_.call == 0 and records[0].shape:
            candidates[stream_of(trace, id_)].append((id_, records))
    inputs: dict[Stream, dict[MicrobatchKey, Rows]] = defaultdict(dict)
    for stream, found in sorted(candidates.items()):
        _, records = min(found, key=lambda item: _preference(stream, *item))
        for record in records:
            if not record.recompute:
                key = MicrobatchKey(stream, record.rank, record.microbatch)
                inputs[stream][key] = tuple(spans.load(record))
    return inputs


def stream_of(trace: Trace, id_: TensorId) -> Stream:
    return Stream(id_.step, root_of(id_.module, trace.roots), id_.apart)


def _preference(stream: Stream, id_: TensorId, records: list[Record]) -> tuple[bool, bool, int]:
    integer = records[0].dtype.startswith(("int", "uint"))
    return id_.module != stream.root, not integer, min(record.sequence for record in records)


def _splits(parts: set[tuple[Part, int]]) -> set[int]:
    microbatches = len({microbatch for _, microbatch in parts}) or 1
    sequences = len({part.positions for part, _ in parts}) or 1
    ranks = max(1, len(parts) // microbatches)
    return {len(parts) or 1, microbatches, ranks, sequences, ranks // sequences}


def _count(runs: Runs) -> int:
    return sum(run.length for run in runs)
