"""Lost bits: tensors that the candidate made in fewer bits than the reference, untold.

What each run was told is read from what it says of itself: the dtypes that the candidate was told
to reduce in, unless the reference was told others, and those that only it was told to compute in.
Who casts by hand, or by a hook, says nothing: those are found. compare/grain.py compares the bits
of both runs. Where the reference has one term, and no bits to lose, gradients are measured that
lost bits on the way from their own terms:

    local gradients of two ranks    bfloat16, their sum has bits of float32
    main gradient                   float32, no finer than bfloat16: reduced in bfloat16
    reference                       one term, which is its main gradient: no bits to lose

Enters: what was measured, and whoever runs jobs. Leaves: the precisions of such tensors. Where the
reference's own reduction loses bits as well, nothing is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from ttrace.analysis.compare import (
    Asked,
    Measured,
    Precisions,
    Unit,
    is_witnessed,
    precisions,
    source_of,
)
from ttrace.analysis.measuring import Compared, statistics_of
from ttrace.analysis.sources import Source, Sources
from ttrace.analysis.work import MeasureJob, RunJobs
from ttrace.core.formats import MOST_ROUNDINGS, Precision, coarsest, format_of
from ttrace.core.ids import Kind, TensorId
from ttrace.core.record import COMPUTE_DTYPE, REDUCTION_DTYPE


def other_precisions(
    run: RunJobs,
    sources: Sources,
    compared: Compared,
    noise: Sequence[Mapping[TensorId, Measured]],
    *,
    isolated: bool,
) -> Precisions:
    """Tensors that were made in fewer bits than the reference's, or not quantised as they are."""
    wanted = asked(sources.reference, sources.candidate)
    found = precisions(
        compared.pairs,
        compared.measured,
        [statistics_of(run) for run in noise],
        wanted,
        isolated=isolated,
    )
    sums = rounded_sums(sources.candidate, compared, wanted, run)
    return replace(found, wrong={**sums, **found.wrong})


def asked(reference: Source, candidate: Source) -> Asked:
    """Of parameters, too: a model that is kept in bfloat16 computes in it."""
    reduced_in, expected = (_told(run, REDUCTION_DTYPE) for run in (candidate, reference))
    return Asked(
        everywhere=_computed_in(candidate) - _computed_in(reference),
        in_reduction=reduced_in & expected if expected else reduced_in,
    )


def _computed_in(source: Source) -> frozenset[str]:
    return frozenset(source.facts.dtypes) | _told(source, COMPUTE_DTYPE)


def _told(source: Source, fact: str) -> frozenset[str]:
    return frozenset(source.facts.facts.get(fact, "").split(", ")) - {""}


_REDUCED = (Kind.REDUCED_GRAD, Kind.MAIN_GRAD)


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
    # Bits of mantissa of terms, of their sum, and of both in the reference:
    #     23, 7, 7, 7      doubtful: the sum lost bits that its terms have
    #     23, 7, 23, 23    not here: the reference has these bits, so grain.py tells
    #     7, 7, 7, 7       nothing is lost
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
    return left <= MOST_ROUNDINGS * precision.coarser.eps * gain
