"""Requested: in which lower dtypes the candidate was told to compute and to reduce.

Enters: what both runs say of themselves. Leaves: the dtypes that the candidate was told to reduce
in, unless the reference was told others, and those that only it was told to compute in. Who casts
by hand, or by a hook, says nothing: those are found.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ttrace.analysis.compare import Asked, Measured, Precisions, precisions
from ttrace.analysis.comparison import Compared, statistics_of
from ttrace.analysis.own_terms import rounded_sums
from ttrace.analysis.sources import Source, Sources
from ttrace.analysis.tasks import RunJobs
from ttrace.core.ids import TensorId
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
