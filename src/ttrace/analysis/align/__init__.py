"""Stage 2 of 8: align.

Enters: the records of a reference and a candidate. Leaves: for every id, which piece of which rank
covers which part of the logical tensor, on both sides. Plans only: no tensor is built here, and
nothing is judged. Of a vocabulary that the runs pad to different sizes, what both have is aligned.

    matching   how the samples of two traces correspond: by rows of inputs (lookup), by inputs that
               number rows (pointers), by the tokens that experts get (routing)
    place      where each record sits in the logical tensor: by its layout, by the samples that its
               rank holds (holdings), by its shape (infer), as a term of a sum (sums)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ttrace.adapters.base import NO_BATCH
from ttrace.analysis.align.holdings import key_of
from ttrace.analysis.align.infer import OwnShape
from ttrace.analysis.align.matching import match_batches
from ttrace.analysis.align.place import Placer, RecordKey
from ttrace.analysis.batch import EMPTY_BATCH, Batch, Batches, Strand, strand_of
from ttrace.analysis.sources import Source
from ttrace.core.form import made_at
from ttrace.core.ids import Kind, TensorId
from ttrace.core.logical import Alignment, LogicalTensor, Pair
from ttrace.core.record import Record
from ttrace.core.rows import RecordRows
from ttrace.trace.plan import Position
from ttrace.trace.reader import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class Aligned:
    """Everything that two traces say about each other's shape."""

    tensors: tuple[Alignment, ...]
    reference_batches: Batches
    candidate_batches: Batches
    consumers: dict[TensorId, tuple[TensorId, ...]] = field(default_factory=dict)
    placers: tuple[Placer, ...] = ()  # of the candidate
    crops: dict[TensorId, Crop] = field(default_factory=dict)  # where vocabularies end
    notes: tuple[str, ...] = ()

    @property
    def positions(self) -> dict[RecordKey, Position]:
        """Where every record of the candidate sits."""
        return {key: at for placer in self.placers for key, at in placer.positions.items()}

    def pairs(self) -> dict[TensorId, Pair]:
        """All that can be measured."""
        return {a.id: a.pair for a in self.tensors if a.pair is not None}

    def references(self) -> dict[TensorId, LogicalTensor]:
        """The reference's tensors of which nothing is missing."""
        return {a.id: a.whole_reference for a in self.tensors if a.whole_reference is not None}


def align_one(source: Source) -> dict[TensorId, LogicalTensor | str]:
    """A trace by itself: the logical tensor of every id, or why there is none."""
    batches = source.batches
    placers: dict[Strand, Placer] = {}
    found: dict[TensorId, LogicalTensor | str] = {}
    for id_, records in source.trace.by_id().items():
        strand = strand_of(source.trace, id_)
        placer = placers.setdefault(strand, Placer(source.trace, batches.get(strand, EMPTY_BATCH)))
        if stored := records.stored():
            found[id_] = placer.place(stored, placer.own_shape(stored))
    return found


class Aligner:
    """Aligns runs with one reference, whose own side is put together once."""

    def __init__(self, reference: Source) -> None:
        self._reference = reference
        self._placers: dict[int, Placer] = {}  # by the batch that they were made for

    def align(self, source: Source) -> Aligned:
        """Both traces, the candidate placed in the logical shapes of the reference."""
        batches = match_batches(self._reference, source)
        reference, candidate = self._reference.trace, source.trace
        sides: dict[Strand, tuple[Placer, Placer]] = {}
        vocabulary = vocabulary_of(reference, candidate)
        crops: dict[TensorId, Crop] = {}
        notes: list[str] = []
        tensors = []
        for id_ in {**reference.by_id(), **candidate.by_id()}:
            expected, found = reference.by_id().get(id_), candidate.by_id().get(id_)
            if id_.module in vocabulary and expected and found:
                crop = find_crop(id_, expected, found)
                if crop is not None:
                    if id_.kind is Kind.PARAM:
                        notes.append(padding_note(id_, expected[0], found[0], crop))
                    crops[id_] = crop
                    expected, found = cropped(expected, crop), cropped(found, crop)
            strand = strand_of(reference if expected else candidate, id_)
            own, other = (side.get(strand, EMPTY_BATCH) for side in batches)
            if _names_rows(id_, expected, found, other):
                tensors.append(Alignment(id=id_, reference=None, candidate=None, names_rows=True))
                continue
            if strand not in sides:
                sides[strand] = self._placer(strand, own), Placer(candidate, other)
            tensors.append(_align_id(id_, expected, found, *sides[strand]))
        return Aligned(
            tensors=tuple(sorted(tensors, key=_execution_order)),
            reference_batches=batches[0],
            candidate_batches=batches[1],
            consumers=_consumers(candidate),
            placers=tuple(side for _, side in sides.values()),
            crops=crops,
            notes=tuple(notes),
        )

    def _placer(self, strand: Strand, batch: Batch) -> Placer:
        """What was placed stays known for the next run in the same order of samples."""
        own = Placer(self._reference.trace, batch)
        return self._placers.setdefault(id(batch), own) if self._is_kept(strand, batch) else own

    def _is_kept(self, strand: Strand, batch: Batch) -> bool:
        choices = self._reference.inputs_of(strand).choices()
        return any(batch is self._reference.batch_by(strand, choice) for choice in choices)


def _align_id(
    id_: TensorId,
    reference: RecordRows | None,
    candidate: RecordRows | None,
    reference_placer: Placer,
    candidate_placer: Placer,
) -> Alignment:
    expected, found = _stored(reference), _stored(candidate)
    if not expected or not found:
        elsewhere = bool(reference and not expected) or bool(candidate and not found)
        left, right = _placed(reference_placer, expected), _placed(candidate_placer, found)
        return _alignment(id_, left, right, stored_elsewhere=elsewhere)
    own = reference_placer.own_shape(expected)
    for shape in _shapes_to_try(own, candidate_placer.own_shape(found)):
        left = reference_placer.place(expected, shape)
        right = candidate_placer.place(found, shape)
        if isinstance(left, LogicalTensor) and isinstance(right, LogicalTensor):
            return Alignment(id=id_, reference=left, candidate=right)
    if own.stacked:
        problem = "its ranks hold different values and nothing says how they belong together"
        return Alignment(id=id_, reference=None, candidate=None, reference_problem=problem)
    return _alignment(
        id_,
        reference_placer.place(expected, own),
        candidate_placer.place(found, own),
        uncertain=candidate_placer.is_guess(id_),
    )


def _names_rows(
    id_: TensorId, reference: RecordRows | None, candidate: RecordRows | None, batch: Batch
) -> bool:
    """Whether these are inputs that each rank counts by itself and that were understood."""
    if not reference or not candidate or not id_.kind.is_activation or not batch.pointers:
        return False
    return all(
        record.location is not None and (key_of(record), record.location.xxh3) in batch.pointers
        for record in (*reference, *candidate)
    )


def _shapes_to_try(reference: OwnShape, candidate: OwnShape) -> list[OwnShape]:
    """The reference's shape counts, unless it is a guess and the candidate knows better."""
    return sorted({reference: 0, candidate: 1}, key=lambda own: (own.stacked, own.guessed))


def _stored(records: RecordRows | None) -> RecordRows:
    """Those with bytes; the same object where all have some."""
    return RecordRows.of(()) if records is None else records.stored()


def _placed(placer: Placer, records: RecordRows) -> LogicalTensor | str | None:
    return placer.place(records, placer.own_shape(records)) if records else None


def _alignment(
    id_: TensorId,
    reference: LogicalTensor | str | None,
    candidate: LogicalTensor | str | None,
    *,
    stored_elsewhere: bool = False,
    uncertain: bool = False,
) -> Alignment:
    return Alignment(
        id=id_,
        reference=reference if isinstance(reference, LogicalTensor) else None,
        candidate=candidate if isinstance(candidate, LogicalTensor) else None,
        reference_problem=reference if isinstance(reference, str) else "",
        candidate_problem=candidate if isinstance(candidate, str) else "",
        stored_elsewhere=stored_elsewhere,
        uncertain=uncertain,
    )


def _execution_order(alignment: Alignment) -> tuple[int, int, TensorId]:
    """Execution order of the reference; what only the candidate has comes last."""
    for place, side in enumerate((alignment.reference, alignment.candidate)):
        if side is not None and side.pieces:
            return place, made_at(side.pieces), alignment.id
    return 2, 0, alignment.id


def _consumers(trace: Trace) -> dict[TensorId, tuple[TensorId, ...]]:
    """For every stored tensor, the ids under which the same object was seen again."""
    consumers: dict[TensorId, list[TensorId]] = {}
    for id_, records in trace.by_id().items():
        same = (example.same_as for example in records.examples())
        source = next((id_ for id_ in same if id_ is not None), None)
        if source is not None:
            consumers.setdefault(source, []).append(id_)
    return {source: tuple(ids) for source, ids in consumers.items()}


Crop = tuple[int, int]  # dim, size


def vocabulary_of(reference: Trace, candidate: Trace) -> frozenset[str]:
    """Modules of which both runs say that they have a row for each token."""
    sides = (
        {module for rank in trace.ranks.values() for module in rank.info.vocabulary}
        for trace in (reference, candidate)
    )
    return frozenset(set.intersection(*sides))


def find_crop(
    id_: TensorId, reference: Sequence[Record], candidate: Sequence[Record]
) -> Crop | None:
    """Where to end both, if they differ in the size of the vocabulary."""
    left, right = (_shape(records) for records in (reference, candidate))
    if left is None or right is None or len(left) != len(right) or not left:
        return None
    dim = _dim(id_, reference[0])
    if dim is None:
        return None
    dim %= len(left)
    if left[dim] == right[dim]:
        return None
    return dim, min(left[dim], right[dim])


def cropped(records: Sequence[Record], crop: Crop) -> RecordRows:
    return RecordRows.of(
        [replace(r, layout=r.layout.crop(*crop)) for r in records if r.layout is not None]
    )


def padding_note(id_: TensorId, reference: Record, candidate: Record, crop: Crop) -> str:
    sizes = [r.layout.shape[crop[0]] for r in (reference, candidate) if r.layout is not None]
    return (
        f"{id_.module}: the vocabulary has {sizes[0]} rows in the reference and {sizes[1]} in the "
        f"candidate, padding included; the first {crop[1]} are compared"
    )


def _shape(records: Sequence[Record]) -> tuple[int, ...] | None:
    """Only where every rank knows its layout."""
    layouts = [record.layout for record in records]
    shapes = {layout.shape for layout in layouts if layout is not None}
    return shapes.pop() if None not in layouts and len(shapes) == 1 else None


def _dim(id_: TensorId, record: Record) -> int | None:
    """The rows of a weight and all that belongs to it; the columns of logits."""
    if id_.kind in (Kind.OUTPUT, Kind.GRAD_OUTPUT):
        return -1
    source = record.same_as  # a weight that is given to a module as an argument
    is_weight = record.batch_dim == NO_BATCH or (source is not None and source.kind is Kind.PARAM)
    return 0 if is_weight or not id_.kind.is_activation else None
