"""A comparison as rules see it: the runs, what was measured of them, and what is asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from ttrace.analysis.compare import Asked, Measured, Precisions, precisions
from ttrace.analysis.judge.rulings import Exhibit
from ttrace.analysis.measuring import Compared, statistics_of
from ttrace.analysis.sources import Source, Sources
from ttrace.core.ids import TensorId
from ttrace.core.record import COMPUTE_DTYPE, REDUCTION_DTYPE
from ttrace.core.results import Acceptance


@dataclass(frozen=True, kw_only=True)
class CaseFile:
    """What all rules look at. `noise` are the perturbed references, as they were measured."""

    sources: Sources
    compared: Compared
    exhibits: Mapping[TensorId, Exhibit]
    noise: Sequence[Mapping[TensorId, Measured]] = ()
    is_isolated: bool = False
    accept: Sequence[Acceptance] = ()

    @cached_property
    def asked(self) -> Asked:
        """Dtypes that the candidate was told to use."""
        return asked(self.sources.reference, self.sources.candidate)

    @cached_property
    def precisions(self) -> Precisions:
        """Of tensors that one run made in fewer bits, by the bits of both."""
        return precisions(
            self.compared.pairs,
            self.compared.measured,
            [statistics_of(run) for run in self.noise],
            self.asked,
            isolated=self.is_isolated,
        )


def asked(reference: Source, candidate: Source) -> Asked:
    """What only the candidate was told; a model that is kept in bfloat16 computes in it."""
    reduced_in, expected = (_told(run, REDUCTION_DTYPE) for run in (candidate, reference))
    return Asked(
        everywhere=_computed_in(candidate) - _computed_in(reference),
        in_reduction=reduced_in & expected if expected else reduced_in,
    )


def _computed_in(source: Source) -> frozenset[str]:
    return frozenset(source.facts.dtypes) | _told(source, COMPUTE_DTYPE)


def _told(source: Source, fact: str) -> frozenset[str]:
    return frozenset(source.facts.facts.get(fact, "").split(", ")) - {""}
