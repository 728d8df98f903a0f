"""Gradients that lost bits on the way from their own terms, where the reference has one term.

    local gradients of two ranks    bfloat16, their sum has bits of float32
    main gradient                   float32, no finer than bfloat16: reduced in bfloat16
    reference                       one term, which is its main gradient: no bits to lose

Enters: what was measured of the candidate, and whoever runs jobs. Leaves: the precisions of such
gradients. Where the reference's own reduction loses bits as well, or the candidate was told to
reduce in so few, nothing is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ttrace.analysis.compare import Asked, Measured, Unit, is_witnessed, source_of
from ttrace.analysis.comparison import Compared
from ttrace.analysis.sources import Source
from ttrace.analysis.tasks import RunJobs
from ttrace.analysis.work import MeasureJob
from ttrace.core.formats import coarsest, format_of
from ttrace.core.ids import Kind, TensorId
from ttrace.core.precision import Precision

_REDUCED = (Kind.REDUCED_GRAD, Kind.MAIN_GRAD)
# Chosen: of the coarser format, as in judge.py; a gradient that is further off its own terms, but
# for a factor, was not just rounded.
_ROUNDINGS = 2.0


def rounded_sums(
    candidate: Source, compared: Compared, asked: Asked, run: RunJobs
) -> dict[TensorId, Precision]:
    """Precisions of gradients that are coarser than their terms: the sum of these first."""
    doubtful = dict(_doubtful(compared, asked))
    where = candidate.spans.path
    jobs = [
        MeasureJob(
            reference=where,
            candidate=where,
            unit=Unit(
                id=id_, reference=compared.pairs[source][1], candidate=compared.pairs[id_][1]
            ),
        )
        for id_, (source, _) in doubtful.items()
    ]
    measured: Sequence[Measured] = run(jobs, "sums of gradients") if jobs else ()
    return {
        id_: precision
        for (id_, (_, precision)), found in zip(doubtful.items(), measured, strict=True)
        if is_witnessed(precision, found) and _is_rounding(precision, found)
    }


def _doubtful(
    compared: Compared, asked: Asked
) -> Iterator[tuple[TensorId, tuple[TensorId, Precision]]]:
    """With what they are made of, and the precisions of both, by their bits alone."""
    for id_, found in compared.measured.items():
        source = source_of(id_, compared.measured.keys()) if id_.kind in _REDUCED else None
        if source is None:
            continue
        terms, sums = compared.measured[source].statistics, found.statistics
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
    return left <= _ROUNDINGS * precision.coarser.eps * gain
