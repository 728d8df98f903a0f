"""Model inputs: what every microbatch of every rank was given, whole and in order of preference.

Enters: a trace and its bytes. Leaves: the inputs of each model, or of its first module where no
rank records the model's own. An input that ranks hold as parts of one DTensor is put together: it
is the same batch for all of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from ttrace.analysis.batch import MicrobatchKey, Rows, Strand, strand_of
from ttrace.core.cover import disjoint_covers, find_gaps
from ttrace.core.ids import Kind, TensorId
from ttrace.core.layout import Layout
from ttrace.core.record import Record
from ttrace.trace.reader import Trace
from ttrace.trace.spans import SpanReader

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
