"""Stage 2 of 7: align.

Enters: the records of a reference and a candidate. Leaves: for every id, which piece of which rank
covers which part of the logical tensor, on both sides. Plans only: no tensor is built here, and
nothing is judged.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from ttrace.align.batch import Batch, match_batch, own_batch
from ttrace.align.place import Placer, Unplaceable
from ttrace.core.ids import TensorId
from ttrace.core.logical import LogicalTensor, assemble
from ttrace.core.reader import Trace
from ttrace.core.spans import SpanReader


@dataclass(frozen=True, slots=True, kw_only=True)
class Alignment:
    """One id on both sides; a side that cannot be placed says why in `problem`."""

    id: TensorId
    reference: LogicalTensor | None
    candidate: LogicalTensor | None
    problem: str = ""
    # The side that lacks this id stored it under another one, because the tensor was the same
    # object.
    stored_elsewhere: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Aligned:
    """Everything that two traces say about each other's shape."""

    tensors: tuple[Alignment, ...]
    reference_batch: Batch
    candidate_batch: Batch
    consumers: dict[TensorId, tuple[TensorId, ...]] = field(default_factory=dict)


def align_one(trace: Trace, spans: SpanReader) -> dict[TensorId, LogicalTensor | str]:
    """A trace by itself: the logical tensor of every id, or why there is none."""
    batch = own_batch(trace, spans)
    return _logical(trace, batch, Placer(trace, batch), shapes=None)


def align(
    reference: Trace,
    candidate: Trace,
    *,
    reference_spans: SpanReader,
    candidate_spans: SpanReader,
) -> Aligned:
    """Both traces, the candidate placed in the logical shapes of the reference."""
    reference_batch = own_batch(reference, reference_spans)
    ours = _logical(reference, reference_batch, Placer(reference, reference_batch), shapes=None)
    shapes = {id_: t.shape for id_, t in ours.items() if isinstance(t, LogicalTensor)}
    candidate_batch = match_batch(candidate, candidate_spans, reference_batch)
    theirs = _logical(candidate, candidate_batch, Placer(candidate, candidate_batch), shapes=shapes)
    mentioned = set(reference.by_id()) | set(candidate.by_id())
    return Aligned(
        tensors=tuple(
            _pair(
                id_,
                ours.get(id_),
                theirs.get(id_),
                id_ in reference.by_id(),
                id_ in candidate.by_id(),
            )
            for id_ in sorted(mentioned, key=_order(ours, theirs))
        ),
        reference_batch=reference_batch,
        candidate_batch=candidate_batch,
        consumers=_consumers(candidate),
    )


Logical = dict[TensorId, LogicalTensor | str]


def _logical(
    trace: Trace, batch: Batch, placer: Placer, *, shapes: dict[TensorId, tuple[int, ...]] | None
) -> Logical:
    logical: Logical = {}
    for id_, records in trace.by_id().items():
        stored = [record for record in records if record.location is not None]
        if not stored:
            continue
        try:
            shape = placer.own_shape(stored) if shapes is None else shapes.get(id_)
            if shape is None:
                shape = placer.own_shape(stored)
            pieces, notes = placer.pieces(stored, shape)
            logical[id_] = assemble(shape, pieces, notes)
        except Unplaceable as problem:
            logical[id_] = str(problem)
    return logical


def _pair(
    id_: TensorId,
    reference: LogicalTensor | str | None,
    candidate: LogicalTensor | str | None,
    in_reference: bool,  # noqa: FBT001
    in_candidate: bool,  # noqa: FBT001
) -> Alignment:
    problems = [
        f"{side}: {value}"
        for side, value in (("reference", reference), ("candidate", candidate))
        if isinstance(value, str)
    ]
    return Alignment(
        id=id_,
        reference=reference if isinstance(reference, LogicalTensor) else None,
        candidate=candidate if isinstance(candidate, LogicalTensor) else None,
        problem="; ".join(problems),
        stored_elsewhere=(reference is None and in_reference)
        or (candidate is None and in_candidate),
    )


def _order(ours: Logical, theirs: Logical) -> Callable[[TensorId], tuple[int, int, TensorId]]:
    """Execution order of the reference; what only the candidate has comes last."""

    def key(id_: TensorId) -> tuple[int, int, TensorId]:
        for place, side in enumerate((ours, theirs)):
            value = side.get(id_)
            if isinstance(value, LogicalTensor) and value.pieces:
                return place, value.sequence, id_
        return 2, 0, id_

    return key


def _consumers(trace: Trace) -> dict[TensorId, tuple[TensorId, ...]]:
    """For every stored tensor, the ids under which the same object was seen again."""
    consumers: dict[TensorId, list[TensorId]] = {}
    for id_, records in trace.by_id().items():
        source = next((record.same_as for record in records if record.same_as is not None), None)
        if source is not None:
            consumers.setdefault(source, []).append(id_)
    return {source: tuple(ids) for source, ids in consumers.items()}
