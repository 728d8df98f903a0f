"""The batch of one trace: which part of it each microbatch of each rank holds.

Data-parallel ranks and accumulated microbatches are keys of the batch dimension, context-parallel
ranks of the positions. Who holds what is decided by samplers and slicing that no framework exposes,
so it is read off the model's inputs: what every microbatch of every rank was given, whole and in
order of preference. Where no rank records a model's own inputs, those of its first module count.
Pipeline stages that see no model input hold what the first stage held. How the samples of two
traces correspond is found by align/matching.py. Several models, and forwards without gradients,
have each a batch of their own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
import xxhash

from ttrace.core.ids import Kind, TensorId, root_of
from ttrace.core.layout import Layout, Run, Runs
from ttrace.core.logical import disjoint_covers, find_gaps
from ttrace.core.record import RankInfo, Record
from ttrace.trace.reader import Trace
from ttrace.trace.spans import SpanReader

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


InputName = tuple[str, str]  # module, slot
WHOLE = -1  # no dim: all of an input is one sample, as the few numbers of a state


@dataclass(frozen=True, slots=True)
class RowsOf:
    """Which input tells rows apart, and along which of its dims."""

    name: InputName
    dim: int = 0


@dataclass(frozen=True, slots=True)
class ModelInputs:
    """By name, the likeliest to tell samples apart first; then by step and microbatch."""

    tensors: Mapping[InputName, Mapping[int, Mapping[MicrobatchKey, torch.Tensor]]] = field(
        default_factory=dict
    )

    def choices(self) -> list[RowsOf]:
        """Every way to read rows off an input; last, rows side by side in what looks like one."""
        packed = [name for name, steps in self.tensors.items() if all(map(_is_one, _all(steps)))]
        flat = [n for n, steps in self.tensors.items() if all(t.ndim == 1 for t in _all(steps))]
        return [
            *(RowsOf(name) for name in self.tensors if name not in flat),
            *(RowsOf(name, dim) for name in flat for dim in (WHOLE, 0)),
            *(RowsOf(name, 1) for name in packed),
        ]

    def rows(self, choice: RowsOf) -> dict[int, dict[MicrobatchKey, Rows]]:
        return {
            step: {key: rows_along(tensor, choice.dim) for key, tensor in held.items()}
            for step, held in self.tensors.get(choice.name, {}).items()
        }


def rows_along(tensor: torch.Tensor, dim: int) -> Rows:
    if not tensor.numel():
        return ()
    if dim == WHOLE:
        return (tensor,)
    return tuple(tensor.movedim(dim, 0)) if tensor.ndim > dim else ()


def read_model_inputs(trace: Trace, spans: SpanReader) -> dict[Strand, ModelInputs]:
    """All inputs of every model; of the module that ran first where the model itself has none."""
    candidates: dict[Strand, list[tuple[TensorId, list[Record]]]] = defaultdict(list)
    for id_, records in trace.by_id().items():
        if id_.kind is not Kind.INPUT or id_.call or not records[0].shape:
            continue
        kept = [r for r in records if not r.recompute and r.location is not None]
        if kept:
            candidates[strand_of(trace, id_)].append((id_, kept))
    return {strand: _inputs_of(strand.root, found, spans) for strand, found in candidates.items()}


def _inputs_of(
    root: str, candidates: list[tuple[TensorId, list[Record]]], spans: SpanReader
) -> ModelInputs:
    found: dict[InputName, dict[int, dict[MicrobatchKey, torch.Tensor]]] = {}
    candidates.sort(key=lambda item: _preference(root, *item))
    first = candidates[0][0]
    for id_, records in candidates:
        name = (id_.module, id_.slot)
        if name == (first.module, first.slot) or id_.module == root:
            found.setdefault(name, {})[id_.step] = _whole(records, spans)
    return ModelInputs(found)


def _preference(root: str, id_: TensorId, records: list[Record]) -> tuple[bool, bool, bool, int]:
    integer = records[0].dtype.startswith(("int", "uint"))
    are_numbers = len(records[0].shape) < 2  # one for each sample or token: many may be equal
    first = min(record.sequence for record in records)
    return id_.module != root, are_numbers, not integer, first


def _whole(records: Sequence[Record], spans: SpanReader) -> dict[MicrobatchKey, torch.Tensor]:
    tensors = {}
    by_microbatch: dict[int, list[Record]] = defaultdict(list)
    for record in records:
        by_microbatch[record.microbatch].append(record)
    for found in by_microbatch.values():
        layouts = [r.layout for r in found if r.layout is not None and not r.layout.partial]
        for group in _sharing(found, layouts):
            whole = _put_together(group, spans) if len(group) > 1 else None
            for record in group:
                key = MicrobatchKey(record.id.step, record.rank, record.microbatch)
                tensors[key] = spans.load(record) if whole is None else whole
    return tensors


def _sharing(records: Sequence[Record], layouts: Sequence[Layout]) -> list[list[Record]]:
    """Records that are parts of one tensor, together; each by itself where layouts do not say."""
    alone = [[record] for record in records]
    shapes = {layout.shape for layout in layouts}
    if len(layouts) != len(records) or len(shapes) != 1:
        return alone
    covers = disjoint_covers(layouts)
    if any(find_gaps(layouts[0].shape, [layouts[i] for i in cover]) for cover in covers):
        return alone
    return [[records[index] for index in cover] for cover in covers]


def _put_together(records: Sequence[Record], spans: SpanReader) -> torch.Tensor | None:
    whole = None
    for record in records:
        local, layout = spans.load(record), record.layout
        assert layout is not None
        whole = local.new_zeros(layout.shape) if whole is None else whole
        for inside, place in layout.pieces([0] * len(layout.shape), layout.shape):
            whole[place] = local[inside]
    return whole


def _is_one(tensor: torch.Tensor) -> bool:
    return tensor.ndim > 1 and tensor.shape[0] == 1 and tensor.shape[1] > 1


def _all(
    steps: Mapping[int, Mapping[MicrobatchKey, torch.Tensor]],
) -> list[torch.Tensor]:
    return [tensor for held in steps.values() for tensor in held.values()]
