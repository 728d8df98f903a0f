"""Remarks: what the runs themselves say that a reader of the result should know.

Enters: the sources of a check, and what was found of them. Leaves: notes. One of them decides: a
run that made fewer steps than were asked for shows nothing of the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from ttrace.analysis.align import Aligned
from ttrace.analysis.batch import notes_of
from ttrace.analysis.recipes import Codes, formats_of, other_formats, out_of_recipe
from ttrace.analysis.sources import Source
from ttrace.core.finding import Note, Topic
from ttrace.core.form import AlikePieces, unlike
from ttrace.core.formats import Precision
from ttrace.core.ids import TensorId
from ttrace.core.logical import LogicalTensor, Pair
from ttrace.core.record import Difference
from ttrace.trace.progress import read_death, read_refusals


def of_runs(reference: Source, candidate: Source, perturbed: Sequence[Source]) -> Iterator[Note]:
    for text in candidate.notes:
        yield Note(topic=Topic.RUN, text=text)
    noisy = dict.fromkeys(text for source in perturbed for text in source.notes)
    for text in noisy:
        if text not in reference.notes:
            yield Note(topic=Topic.YARDSTICK, text=text)
    yield from _other_devices(reference, candidate, perturbed)
    yield from _fewer_steps(candidate)  # the others have as many
    for source in (reference, candidate, *perturbed):
        how = read_death(source.trace.path)
        if how is not None:
            yield Note(topic=Topic.DIED_AT_EXIT, text=f"{source.role} run {how}")
        for why in read_refusals(source.trace.path):
            yield Note(topic=Topic.NOT_ATTACHED, text=f"{source.role} run: {why}")


def _other_devices(
    reference: Source, candidate: Source, perturbed: Sequence[Source]
) -> Iterator[Note]:
    devices = [source.facts.device for source in (reference, candidate)]
    if devices[0] == devices[1] or not perturbed:
        return
    allowed = all(r.info.other_kernels for s in perturbed for r in s.trace.ranks.values())
    topic = Topic.OTHER_KERNELS if allowed else Topic.NOISE_OF_ONE_DEVICE
    yield Note(topic=topic, text=" and ".join(devices))


def of_alignment(aligned: Aligned) -> Iterator[Note]:
    """How tensors were put together, where that had to be found out."""
    for text in (*notes_of(aligned.candidate_batches), *aligned.notes):
        yield Note(topic=Topic.ALIGNMENT, text=text)
    inferred = [t.id for t in aligned.tensors if t.candidate and t.candidate.notes]
    if inferred:
        yield Note(topic=Topic.INFERRED_LAYOUTS, count=len(inferred), first=inferred[0])
    together = [t.id for t in aligned.tensors if t.is_kept_together]
    if together:
        yield Note(topic=Topic.KEPT_TOGETHER, count=len(together), first=together[0])


def of_differences(unused: Iterable[Difference]) -> Iterator[Note]:
    """Hyperparameters that differ and explain nothing."""
    return (Note(topic=Topic.OTHER_NUMBER, difference=difference) for difference in unused)


def of_precisions(allowed: Mapping[TensorId, Precision]) -> Iterator[Note]:
    """Tensors of lower precision than the reference's, by their dtypes; none of them is wrong."""
    by_dtypes: dict[Precision, list[TensorId]] = {}
    for id_, found in allowed.items():
        by_dtypes.setdefault(found, []).append(id_)
    for found, ids in by_dtypes.items():
        yield Note(
            topic=Topic.LOWER_PRECISION,
            count=len(ids),
            first=ids[0],
            text=f"{found.candidate.name}, {found.reference.name} in the reference",
        )


def of_recipes(reference: Codes, candidate: Codes) -> Iterator[Note]:
    """Modules that quantise, where nobody watched the candidate; or that do so otherwise."""
    if candidate is None and (quantising := formats_of(reference)):
        yield Note(topic=Topic.CODES_FLIP, count=len(quantising), modules=tuple(quantising))
    modules = {**out_of_recipe(reference, candidate), **other_formats(reference, candidate)}
    if modules:
        yield Note(topic=Topic.OTHER_RECIPE, count=len(modules), modules=tuple(modules))


def of_repetition(is_equal: Mapping[TensorId, bool]) -> Note:
    """Whether the reference, run again, is bitwise the same."""
    differing = [id_ for id_, equal in is_equal.items() if not equal]
    return Note(
        topic=Topic.NOT_DETERMINISTIC if differing else Topic.DETERMINISTIC,
        count=len(differing),
        total=len(is_equal),
        first=differing[0] if differing else None,
    )


def _fewer_steps(source: Source) -> Iterator[Note]:
    asked = max((summary.asked for summary in source.summaries), default=0)
    made = min((summary.steps for summary in source.summaries), default=0)
    if made < asked:
        yield Note(topic=Topic.FEWER_STEPS, count=made, total=asked)


def of_covering(
    whole: Mapping[TensorId, Pair], read: Mapping[TensorId, Pair], ranks: int
) -> Iterator[Note]:
    """How many ranks of the candidate were read from; replicas that may be wrong, unseen.

    A covering set of ranks is as few as hold every part of every tensor. Pieces are those of the
    first ranks that hold them, of all tensors alike, so the ranks of all pieces are few: of
    parameters one replica of all their shards, of activations one rank for each part of the batch.
    """
    used = {rank for _, candidate in read.values() for rank in _ranks(candidate)}
    yield Note(topic=Topic.COVERING_RANKS, count=len(used), total=ranks)
    left_out = {
        id_: candidate
        for id_, (_, candidate) in whole.items()
        if candidate.replicas and _is_covered(read[id_][1], candidate)
    }
    differing = {id_: sum(map(len, unlike(tensor))) for id_, tensor in left_out.items()}
    first = next((id_ for id_, count in differing.items() if count), None)
    if first is not None:
        yield Note(
            topic=Topic.OTHER_REPLICAS,
            count=sum(differing.values()),
            total=sum(len(tensor.replicas) for tensor in left_out.values()),
            first=first,
        )


def _is_covered(read: LogicalTensor, whole: LogicalTensor) -> bool:
    """Whether it was read without its replicas; those that are terms of a sum are its pieces."""
    return read.pieces is whole.pieces and not read.replicas


def _ranks(tensor: LogicalTensor) -> list[int]:
    rows = AlikePieces.of(tensor.pieces).records
    found: list[int] = np.unique(rows.table.columns.rank[rows.numbers]).tolist()
    return found
