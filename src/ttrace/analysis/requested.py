"""Requested: in which lower dtypes the candidate was told to compute and to reduce.

Enters: what both runs say of themselves. Leaves: the dtypes that the candidate was told to use, and
those that only it was told to compute in: a reference of one rank has nothing to reduce, whatever
it was told. Who casts by hand, or by a hook, says nothing: those are found.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ttrace.analysis.compare import Asked, Measured, Precisions, precisions
from ttrace.analysis.comparison import Compared, statistics_of
from ttrace.analysis.sources import Source, Sources
from ttrace.core.ids import TensorId
from ttrace.core.record import COMPUTE_DTYPE, REDUCTION_DTYPE


def other_precisions(
    sources: Sources,
    compared: Compared,
    noise: Sequence[Mapping[TensorId, Measured]],
    *,
    isolated: bool,
) -> Precisions:
    """Tensors that were made in fewer bits than the reference's, or not quantised as they are."""
    return precisions(
        compared.pairs,
        compared.measured,
        [statistics_of(run) for run in noise],
        asked(sources.reference, sources.candidate),
        isolated=isolated,
    )


def asked(reference: Source, candidate: Source) -> Asked:
    """Of parameters, too: a model that is kept in bfloat16 computes in it."""
    return Asked(
        everywhere=_computed_in(candidate) - _computed_in(reference),
        in_reduction=_told(candidate, REDUCTION_DTYPE),
    )


def _computed_in(source: Source) -> frozenset[str]:
    return frozenset(source.facts.dtypes) | _told(source, COMPUTE_DTYPE)


def _told(source: Source, fact: str) -> frozenset[str]:
    return frozenset(source.facts.facts.get(fact, "").split(", ")) - {""}
