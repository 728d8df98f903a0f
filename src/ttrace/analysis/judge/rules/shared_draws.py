"""Parts on different ranks that were rounded by the same random numbers.

    layers.0.wq.weight    rows 0 to 31 on rank 0, rows 32 to 63 on rank 1, each rounded by chance
                          as it should be, but wherever rank 0 rounds up, rank 1 does

Each rank by itself is right, and no value tells. What ranks have in common does
(measure/rounding.py). Only runs are looked at whose updates are rounded by chance, as a perturbed
reference tells.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise
from operator import add

import torch

from ttrace.analysis.engine import Workplace
from ttrace.analysis.judge.case_file import CaseFile
from ttrace.analysis.judge.rules.base import Rule
from ttrace.analysis.judge.rulings import Accusation, Weight
from ttrace.core.finding import Finding, Specifics
from ttrace.core.formats import format_of
from ttrace.core.ids import Kind, TensorId
from ttrace.core.layout import Layout
from ttrace.core.logical import LogicalTensor, Pair, Piece
from ttrace.core.results import Verdict
from ttrace.core.statistics import Judgement, Reading, Statistic
from ttrace.measure.rounding import Coincidence, coincidence, roundings
from ttrace.trace.blocks import PairReader
from ttrace.trace.store import PathOrUrl

_KINDS = (Kind.PARAM_AFTER, Kind.OPTIMIZER)
_LOW = 10  # bits of mantissa, at most: nobody rounds wider dtypes by chance
_MOST_PARTS = 8  # chosen: neighbours of one tensor that are compared
_MOST_ELEMENTS = 1 << 18  # chosen: of each part
# Chosen, in standard deviations: by chance in no run that anybody makes, and of one tensor.
_CERTAIN, _SHARE = 12.0, 3.0
# Chosen: what rows and columns have in common, in place as elsewhere, is no evidence.
_ABOVE_OTHERS = 4.0
# Chosen: half of what was measured where ranks drew the same numbers; without other noise than the
# reference's own rounding it would be 0.25.
_CORRELATED = 0.075


Both = tuple[Coincidence, Coincidence]  # towards more, and away from zero


@dataclass(frozen=True, slots=True, kw_only=True)
class CoincidenceJob:
    """How alike neighbouring parts of one tensor were rounded."""

    reference: PathOrUrl
    candidate: PathOrUrl
    id: TensorId
    pair: Pair
    parts: tuple[Piece, ...]

    @property
    def cost(self) -> int:
        return sum(min(part.layout.volume, _MOST_ELEMENTS) for part in self.parts)

    @property
    def name(self) -> str:
        return str(self.id)

    def run(self, place: Workplace) -> Both:
        reader = place.instrument(PairReader, self.reference, self.candidate)
        expected, _ = self.pair
        found = [_roundings(reader, expected, part) for part in self.parts]
        senses = (
            sum((coincidence(a[sense], b[sense]) for a, b in pairwise(found)), Coincidence())
            for sense in (0, 1)
        )
        return next(senses), next(senses)


def _roundings(
    reader: PairReader, reference: LogicalTensor, part: Piece
) -> tuple[torch.Tensor, torch.Tensor]:
    """Of the first elements of one part, as rows, in the order in which its rank has them."""
    stored = format_of(part.records[0].dtype)
    assert stored is not None
    width = part.layout.local_shape[-1] if len(part.layout.shape) > 1 else 1
    senses: tuple[list[torch.Tensor], list[torch.Tensor]] = ([], [])
    count = 0
    for expected, values in reader.against(reference, part):
        for sense, found in zip(
            senses, roundings(expected, values, stored.mantissa_bits), strict=True
        ):
            sense.append(found.reshape(-1, width))
        count += values.numel()
        if count >= _MOST_ELEMENTS:
            break
    more, away = (torch.cat(sense)[: max(1, _MOST_ELEMENTS // width)] for sense in senses)
    return more, away


class SharedDraws(Rule):
    """Updates that are right, of which several ranks hold parts."""

    def jobs(self, case: CaseFile) -> Sequence[CoincidenceJob]:
        if not any(source.rounds_updates for source in case.sources.perturbed):
            return ()
        reference, candidate = case.sources.reference, case.sources.candidate
        return [
            CoincidenceJob(
                reference=reference.spans.path,
                candidate=candidate.spans.path,
                id=id_,
                pair=pair,
                parts=parts,
            )
            for id_, exhibit in case.exhibits.items()
            if id_.kind in _KINDS and exhibit.tolerance is not None and not exhibit.is_wrong
            if (pair := exhibit.alignment.pair) is not None and len(parts := _parts(pair)) > 1
        ]

    def accuse(self, case: CaseFile, found: Sequence[Both]) -> Iterable[Accusation]:
        groups: dict[tuple[int, Kind], list[tuple[CoincidenceJob, Both]]] = defaultdict(list)
        for job, both in zip(self.jobs(case), found, strict=True):
            groups[job.id.step, job.id.kind].append((job, both))
        alike = (each for group in groups.values() for each in _alike(group))
        return {job.id: _accusation(job, both) for job, both in alike}.values()


def _parts(pair: Pair) -> tuple[Piece, ...]:
    """Parts of one shape, each on a rank of its own, that lie in one piece; else none."""
    # A bfloat16 [8, 64]: [0:4, :] on ranks 0 and 2, [4:8, :] on ranks 1 and 3    two parts
    #     [0:4, :] on rank 0, [4:8, :] on rank 0                                  one, of one rank
    #     [0:5, :] on rank 0, [5:8, :] on rank 1; or a float32                     none
    stored = format_of(pair[1].dtype)
    pieces = [piece for piece in pair[1].pieces if len(piece.records) == 1 and piece.factor == 1]
    is_low = stored is not None and stored.mantissa_bits <= _LOW
    if not is_low or any(piece.records[0].payload is not None for piece in pieces):
        return ()
    shapes = {piece.layout.local_shape for piece in pieces}
    first: dict[int, Piece] = {}
    for piece in pieces:
        first.setdefault(piece.records[0].rank, piece)
    is_plain = len(shapes) == 1 and all(_is_one(piece.layout) for piece in pieces)
    return tuple(first.values())[:_MOST_PARTS] if is_plain else ()


def _is_one(layout: Layout) -> bool:
    return bool(layout.shape) and all(
        len(runs) == 1 and runs[0].start is not None for runs in layout.runs
    )


def _alike(
    measured: Sequence[tuple[CoincidenceJob, Both]],
) -> Iterator[tuple[CoincidenceJob, Coincidence]]:
    """Those that were rounded alike, where all of a step together leave no doubt."""
    for sense in (0, 1):
        together = reduce(add, (both[sense] for _, both in measured))
        if _is_certain(together):
            for job, both in measured:
                if both[sense].deviations[0] >= _SHARE:
                    yield job, both[sense]


def _is_certain(together: Coincidence) -> bool:
    in_place, *elsewhere = together.deviations
    others = max(map(abs, elsewhere))
    is_above = in_place >= max(_CERTAIN, _ABOVE_OTHERS * others)
    return is_above and together.correlation >= _CORRELATED


def _accusation(job: CoincidenceJob, found: Coincidence) -> Accusation:
    ranks = tuple(sorted({rank for part in job.parts for rank in part.ranks}))
    reading = Reading(statistic=Statistic.COINCIDENCE, value=found.correlation)
    return Accusation(
        id=job.id,
        verdict=Verdict.MISMATCH,
        weight=Weight.HIDDEN,
        finding=Finding.ROUNDED_ALIKE,
        specifics=Specifics(ranks=ranks),
        ranks=ranks,
        evidence=(Judgement(reading=reading, allowed=0.0, ratio=math.inf),),
    )
