"""Lost bits: tensors that the candidate made in fewer bits than the reference, untold.

What each run was told is read from what it says of itself: the dtypes that the candidate was told
to reduce in, unless the reference was told others, and those that only it was told to compute in.
Who casts by hand, or by a hook, says nothing: those are found. compare/grain.py compares the bits
of both runs. Where the reference has one term, and no bits to lose, gradients are measured that
lost bits on the way from their own terms:

    local gradients of two ranks    bfloat16, their sum has bits of float32
    main gradient                   float32, no finer than bfloat16: reduced in bfloat16
    reference                       one term, which is its main gradient: no bits to lose

Where the reference's own reduction loses bits as well, nothing is wrong.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

from ttrace.analysis.compare import Asked, Measured, Unit, is_witnessed, source_of
from ttrace.analysis.judge.case_file import CaseFile
from ttrace.analysis.judge.rules.base import Rule
from ttrace.analysis.judge.rulings import Accusation, Exhibit, Weight
from ttrace.analysis.measuring import Compared
from ttrace.analysis.work import MeasureJob
from ttrace.core.finding import Finding, Specifics
from ttrace.core.formats import MOST_ROUNDINGS, Precision, coarsest, format_of
from ttrace.core.ids import Kind, TensorId
from ttrace.core.results import Verdict
from ttrace.core.statistics import Judgement, Reading, Statistic, Statistics

_REDUCED = (Kind.REDUCED_GRAD, Kind.MAIN_GRAD)


class LostBits(Rule):
    """Fewer bits than the reference's, or than those of the terms that were summed."""

    def jobs(self, case: CaseFile) -> Sequence[MeasureJob]:
        where, pairs = case.sources.candidate.spans.path, case.compared.pairs
        return [
            MeasureJob(
                reference=where,
                candidate=where,
                unit=Unit(id=id_, reference=pairs[source][1], candidate=pairs[id_][1]),
            )
            for id_, (source, _) in _doubtful_in(case).items()
        ]

    def accuse(self, case: CaseFile, found: Sequence[Measured]) -> Iterable[Accusation]:
        for id_, precision in {**rounded_sums(case, found), **case.precisions.wrong}.items():
            exhibit = case.exhibits.get(id_)
            if exhibit is not None and explains(precision, exhibit):
                yield Accusation(
                    id=id_,
                    verdict=Verdict.MISMATCH,
                    weight=Weight.LOST_BITS,
                    finding=_finding(precision),
                    specifics=Specifics(
                        dtype=precision.candidate.name, reference_dtype=precision.reference.name
                    ),
                    evidence=(_judgement(precision),),
                )


def rounded_sums(case: CaseFile, found: Sequence[Measured]) -> dict[TensorId, Precision]:
    """Gradients that are coarser than their terms; `found` is how far they are from those."""
    doubtful = _doubtful_in(case)
    return {
        id_: precision
        for (id_, (_, precision)), measured in zip(doubtful.items(), found, strict=True)
        if is_witnessed(precision, measured) and _is_rounding(precision, measured)
    }


def has_lost_bits(case: CaseFile, exhibit: Exhibit) -> bool:
    """Whether the bits of both runs say so."""
    precision = case.precisions.wrong.get(exhibit.id)
    return precision is not None and explains(precision, exhibit)


def explains(precision: Precision, exhibit: Exhibit) -> bool:
    """Whether rounding to the coarser format is all that is wrong; nothing without a tolerance."""
    found: Statistics | None = exhibit.statistics
    if found is None or not exhibit.judgements:
        return False
    is_rounding = found.relative_error <= MOST_ROUNDINGS * precision.coarser.eps
    return not exhibit.is_wrong or is_rounding


def _finding(precision: Precision) -> Finding:
    if precision.is_of_own_terms:
        return Finding.COARSER_THAN_TERMS
    return Finding.LOWER_PRECISION if precision.is_lower else Finding.NOT_QUANTISED


def _judgement(precision: Precision) -> Judgement:
    reading = Reading(statistic=Statistic.GRAIN, value=float(precision.apart))
    return Judgement(reading=reading, allowed=0.0, ratio=math.inf)


def _doubtful_in(case: CaseFile) -> dict[TensorId, tuple[TensorId, Precision]]:
    return dict(_doubtful(case.compared, case.asked))


def _doubtful(
    compared: Compared, asked: Asked
) -> Iterator[tuple[TensorId, tuple[TensorId, Precision]]]:
    """With what they are made of, and the precisions of both, by their bits alone."""
    # Bits of mantissa of terms, of their sum, and of both in the reference:
    #     23, 7, 7, 7      doubtful: the sum lost bits that its terms have
    #     23, 7, 23, 23    not here: the reference has these bits, so grain.py tells
    #     7, 7, 7, 7       nothing is lost
    measured: Mapping[TensorId, Measured] = compared.measured
    for id_, found in measured.items():
        source = source_of(id_, measured.keys()) if id_.kind in _REDUCED else None
        if source is None:
            continue
        terms, sums = measured[source].statistics, found.statistics
        if compared.pairs[source][1].shape != compared.pairs[id_][1].shape:
            continue
        grains = (terms.candidate_grain, sums.candidate_grain, terms.reference_grain)
        if sums.reference_grain is None or None in grains:
            continue
        fine, coarse, of_reference = (coarsest(grain) for grain in grains if grain is not None)
        precision = Precision(reference=fine, candidate=coarse, is_of_own_terms=True)
        stored = format_of(compared.pairs[id_][1].dtype)
        is_open = stored is None or stored.mantissa_bits <= coarse.mantissa_bits
        had_none = max(of_reference.mantissa_bits, sums.reference_grain) <= coarse.mantissa_bits
        is_asked = asked.explains(id_.kind, coarse)
        if precision.is_lower and had_none and not (is_open or is_asked):
            yield id_, (source, precision)


def _is_rounding(precision: Precision, found: Measured) -> bool:
    """Whether nothing but a factor and rounding is between a gradient and its terms."""
    left, gain = found.statistics.residual, abs(found.statistics.gain)
    return left <= MOST_ROUNDINGS * precision.coarser.eps * gain
