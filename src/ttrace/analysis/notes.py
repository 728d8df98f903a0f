"""Notes on a comparison: what runs and their alignment told, and whether a run repeats itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ttrace.analysis.align import Aligned
from ttrace.analysis.sources import Source
from ttrace.core.finding import Note, Topic
from ttrace.core.ids import TensorId
from ttrace.core.statistics import Statistics


def notes_of(
    reference: Source, candidate: Source, perturbed: Sequence[Source], aligned: Aligned
) -> Iterator[Note]:
    """What the runs and the alignment have to say; what both references say is not news."""
    for text in candidate.notes:
        yield Note(topic=Topic.RUN, text=text)
    noisy = dict.fromkeys(text for source in perturbed for text in source.notes)
    for text in noisy:
        if text not in reference.notes:
            yield Note(topic=Topic.YARDSTICK, text=text)
    for text in (*aligned.candidate_batch.notes, *aligned.notes):
        yield Note(topic=Topic.ALIGNMENT, text=text)
    inferred = [t.id for t in aligned.tensors if t.candidate and t.candidate.notes]
    if inferred:
        yield Note(topic=Topic.INFERRED_LAYOUTS, count=len(inferred), first=inferred[0])


def repetition(measured: Mapping[TensorId, Statistics]) -> Note:
    """Whether the reference, run once more, gave the same."""
    differing = [id_ for id_, found in measured.items() if not found.equal]
    return Note(
        topic=Topic.NOT_DETERMINISTIC if differing else Topic.DETERMINISTIC,
        count=len(differing),
        total=len(measured),
        first=differing[0] if differing else None,
    )
