"""One comparison of a check: a run aligned with the reference, as jobs, and what came of them.

Enters: two sources and their alignment. Leaves: jobs, pairs to measure and tensors without a pair
to verify; then, with what was measured, the pairs as they were measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ttrace.analysis.align import Aligned
from ttrace.analysis.compare import LossScale, Measured, Unit
from ttrace.analysis.covering import without_replicas
from ttrace.analysis.scaling import loss_scale
from ttrace.analysis.sources import Source
from ttrace.analysis.work import MeasureJob, VerifyJob
from ttrace.core.alignment import Pair
from ttrace.core.ids import TensorId
from ttrace.core.logical import as_terms
from ttrace.core.scale import Scales
from ttrace.core.statistics import Statistics
from ttrace.trace.sketches import InCells


@dataclass(frozen=True, slots=True, kw_only=True)
class RunComparison:
    """What is to be measured of a run, and verified."""

    what: str  # for people: noise 1 of 2, repeated reference, candidate
    aligned: Aligned
    scale: LossScale
    measure: Sequence[MeasureJob]
    verify: Sequence[VerifyJob]
    samples_ranks: bool = False  # replicas are left out

    @classmethod
    def of(
        cls,
        what: str,
        reference: Source,
        candidate: Source,
        aligned: Aligned,
        *,
        cells: Mapping[TensorId, InCells],
        isolated: Scales | None = None,
        samples_ranks: bool = False,
    ) -> RunComparison:
        scale = loss_scale(reference, candidate, aligned, isolated)
        where, there = reference.spans.path, candidate.spans.path
        units = [
            Unit(
                id=id_,
                reference=without_replicas(expected) if samples_ranks else expected,
                # What looks like replicas, and may be terms, is needed from all ranks.
                candidate=without_replicas(found) if samples_ranks and not may_be_terms else found,
                scale=scale.factor_of(id_),
                may_be_terms=may_be_terms,
                cells=cells.get(id_),
            )
            for id_, (expected, found) in aligned.pairs().items()
            for may_be_terms in [scale.may_be_terms(id_, expected)]
        ]
        return cls(
            what=what,
            aligned=aligned,
            scale=scale,
            measure=[MeasureJob(reference=where, candidate=there, unit=unit) for unit in units],
            verify=[
                VerifyJob(
                    trace=trace,
                    id=one.id,
                    tensor=without_replicas(tensor) if samples_ranks else tensor,
                    is_reference=number == 0,
                )
                for one in aligned.tensors
                if one.pair is None
                for number, (trace, tensor) in enumerate(
                    ((where, one.reference), (there, one.candidate))
                )
                if tensor is not None
            ],
            samples_ranks=samples_ranks,
        )

    @property
    def jobs(self) -> Sequence[MeasureJob | VerifyJob]:
        """Pairs first, as a single process would meet them."""
        return [*self.measure, *self.verify]

    def compared(self, measured: Sequence[Measured]) -> Compared:
        """With what was measured of every pair, in their order."""
        pairs: dict[TensorId, Pair] = {}
        for job, found in zip(self.measure, measured, strict=True):
            unit = job.unit
            terms = as_terms(unit.candidate) if found.as_terms else None
            pairs[unit.id] = (unit.reference, unit.candidate if terms is None else terms)
        return Compared(
            aligned=self.aligned,
            scale=self.scale,
            pairs=pairs,
            measured=dict(zip(pairs, measured, strict=True)),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """Two traces measured against each other, and the pairs as they were measured."""

    aligned: Aligned
    pairs: Mapping[TensorId, Pair]
    measured: Mapping[TensorId, Measured]
    scale: LossScale

    def moved(self) -> dict[TensorId, int]:
        return {id_: found.moved for id_, found in self.measured.items() if found.moved}


def statistics_of(measured: Mapping[TensorId, Measured]) -> dict[TensorId, Statistics]:
    """Of what could be measured."""
    return {id_: found.statistics for id_, found in measured.items() if found.cells_fit}
