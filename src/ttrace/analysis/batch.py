"""The batch of one trace: which part of it each microbatch of each rank holds.

Data-parallel ranks and accumulated microbatches are keys of the batch dimension, context-parallel
ranks of the positions. Who holds what is decided by samplers and slicing that no framework exposes,
so it is read off the model's inputs. Pipeline stages that see no model input hold what the first
stage held. How the samples of two traces correspond is found by align/matching.py. Several models,
and forwards without gradients, have each a batch of their own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
import xxhash

from ttrace.core.ids import TensorId, root_of
from ttrace.core.layout import Run, Runs
from ttrace.core.record import RankInfo
from ttrace.trace.reader import Trace

Rows = Sequence[torch.Tensor]
RowsOfSteps = Mapping[int, Mapping["MicrobatchKey", Rows]]


class Strand(NamedTuple):
    """The calls of one model that keep a graph, or those apart that do not."""

    root: str = ""
    apart: bool = False


Batches = Mapping[Strand, "Batch"]

# Bytes of inputs that number the rows of their own microbatch, and name the same rows in both runs.
Pointers = frozenset[tuple["MicrobatchKey", str]]


class MicrobatchKey(NamedTuple):
    """One microbatch of one rank in one step."""

    step: int
    rank: int
    microbatch: int


@dataclass(frozen=True, slots=True)
class Part:
    """Runs of samples in the global batch, and of positions; no positions: whole sequences.

    `span` is where samples lie that are padded less than the longest of the batch.
    """

    samples: Runs
    positions: Runs = ()
    span: Run | None = None

    @property
    def indices(self) -> list[int]:
        """Every sample, in the order in which they are held."""
        return [index for run in self.samples for index in run.indices]


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The part of every (step, rank, microbatch) in the global batch of that step."""

    sizes: dict[int, int]  # step -> number of samples
    parts: dict[MicrobatchKey, Part]
    rows: dict[int, tuple[str, ...]] = field(default_factory=dict)  # step -> digest of every sample
    lengths: dict[int, int] = field(default_factory=dict)  # step -> positions, where ranks split it
    dim: int = 0
    notes: tuple[str, ...] = ()
    # Rows of another kind beside these, as the edges of graphs whose nodes these are.
    others: tuple[Batch, ...] = ()
    pointers: Pointers = frozenset()
    within: str = ""  # the module that makes these rows, and in which alone they are
    holds_own: bool = False  # what that module itself gets and gives are such rows, too
    unknown: frozenset[str] = frozenset()  # modules inside of which nobody knows which row is which

    def is_inside(self, module: str) -> bool:
        """Whether these rows are those of a module; False where they are not of one alone."""
        own = self.holds_own and module == self.within
        return bool(self.within) and (own or module.startswith(f"{self.within}."))

    def is_unknown_in(self, module: str) -> bool:
        return any(module.startswith(f"{path}.") for path in self.unknown)

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
        return tuple(sorted({split for step in self.sizes for split in self._splits_of(step)}))

    def _splits_of(self, step: int) -> set[int]:
        held = {key: part for key, part in self.parts.items() if key[0] == step}
        parts = {(part, microbatch) for (_, _, microbatch), part in held.items()}
        microbatches = len({microbatch for _, microbatch in parts}) or 1
        sequences = len({part.positions for part, _ in parts}) or 1
        ranks = max(1, len(parts) // microbatches)
        return {len(parts) or 1, microbatches, ranks, sequences, ranks // sequences}

    def peers(self, key: MicrobatchKey) -> tuple[int, ...]:
        """The ranks that hold the same part in the same microbatch, in order."""
        step, _, microbatch = key
        mine = self.parts.get(key)
        return tuple(
            sorted(
                rank
                for (s, rank, m), part in self.parts.items()
                if s == step and m == microbatch and part == mine
            )
        )


def strand_of(trace: Trace, id_: TensorId) -> Strand:
    return Strand(root_of(id_.module, trace.roots), id_.apart)


def splits_of(batches: Batches) -> tuple[int, ...]:
    """Into how many parts batches are split whose losses are trained on."""
    found = {n for strand, b in batches.items() if not strand.apart for n in b.splits_of_batch()}
    return tuple(sorted(found)) or (1,)


def notes_of(batches: Batches) -> list[str]:
    return list(dict.fromkeys(note for batch in batches.values() for note in batch.notes))


EMPTY_BATCH = Batch(sizes={}, parts={})  # of a model that is never called


def digest(values: torch.Tensor) -> str:
    """The xxh3 of the bytes of a row, or of a part of one."""
    # A copy, since a single element counts as contiguous whatever its stride is.
    flat = values.reshape(-1).clone(memory_format=torch.contiguous_format)
    text: str = xxhash.xxh3_64_hexdigest(flat.view(torch.uint8).numpy().tobytes())
    return text


def own_batch(trace: Trace, inputs: RowsOfSteps, dim: int = 0) -> Batch:
    """The batch of a trusted trace: microbatches by data-parallel index, then number."""
    sizes: dict[int, int] = {}
    parts: dict[MicrobatchKey, Part] = {}
    rows: dict[int, tuple[str, ...]] = {}
    lengths: dict[int, int] = {}
    for step, rows_of in inputs.items():
        longest = max(map(_length, rows_of.values()), default=0)
        digests = {key: [digest(row) for row in held] for key, held in rows_of.items() if held}
        if not digests:
            continue  # of a model that is given nothing, there are no samples
        order: list[str] = []
        placed: dict[object, Part] = {}
        for key in in_order(trace, digests):
            group = group_of(trace, key, digests[key])
            if group not in placed:
                samples = (Run(len(order), len(digests[key])),)
                length = _length(rows_of[key])
                span = Run(0, length) if 0 < length < longest else None
                placed[group] = Part(samples, span=span)
                lengths |= {} if span is None else {step: longest}
                order += digests[key]
            parts[key] = placed[group]
        sizes[step] = len(order)
        rows[step] = tuple(order)
        parts |= adopted(trace, step, parts)
    return Batch(sizes=sizes, parts=parts, rows=rows, lengths=lengths, dim=dim)


def adopted(
    trace: Trace, step: int, parts: Mapping[MicrobatchKey, Part]
) -> dict[MicrobatchKey, Part]:
    """Parts of ranks that see no model input: those of the rank that stands nearest to them."""
    held: dict[int, dict[int, Part]] = defaultdict(dict)  # by rank and microbatch
    for (s, owner, microbatch), part in parts.items():
        if s == step:
            held[owner][microbatch] = part
    donors: dict[object, list[int]] = defaultdict(list)
    for owner in held:
        donors[trace.ranks[owner].info.batch].append(owner)
    taken: dict[MicrobatchKey, Part] = {}
    for rank, found in trace.ranks.items():
        info = found.info
        near = donors.get(info.batch, ())
        if rank in held or not near:
            continue
        donor = max(near, key=lambda d: (_common_axes(trace.ranks[d].info, info), -d))
        for microbatch, part in held[donor].items():
            taken[MicrobatchKey(step, rank, microbatch)] = part
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


def _length(rows: Rows) -> int:
    """The positions of every row, where rows are sequences."""
    return len(rows[0]) if len(rows) and rows[0].ndim else 0


def _count(runs: Runs) -> int:
    return sum(run.length for run in runs)
