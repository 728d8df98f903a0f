"""The jobs of a check: measure a pair, verify what has no pair, look closely at a suspect.

They are what an engine gets (engine/base.py): plain data with the places of their traces, and all
that a stage needs to do its part elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ttrace.analysis.compare import Comparator, Measured, Unit
from ttrace.analysis.diagnose.examine import Examiner
from ttrace.analysis.engine import Workplace
from ttrace.core.evidence import Detail
from ttrace.core.form import AlikePieces
from ttrace.core.ids import TensorId
from ttrace.core.logical import LogicalTensor
from ttrace.core.mesh import Mesh
from ttrace.core.results import TensorResult
from ttrace.trace.blocks import BlockReader
from ttrace.trace.store import PathOrUrl

# Measured on fingerprints, in bytes of full tensors that are read in the same time: 0.1 ms for a
# pair, and 24 us for each of its records.
_JOB_COST = 400_000
_RECORD_COST = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureJob:
    """How far a pair of logical tensors is apart."""

    reference: PathOrUrl
    candidate: PathOrUrl
    unit: Unit

    @property
    def cost(self) -> int:
        return _JOB_COST + sum(map(_cost_of, (self.unit.reference, self.unit.candidate)))

    @property
    def name(self) -> str:
        return str(self.unit.id)

    def run(self, place: Workplace) -> Measured:
        comparator = place.instrument(Comparator, self.reference, self.candidate)
        return comparator.measure_unit(self.unit)


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyJob:
    """Raises CorruptTrace where bytes of a tensor that is not measured are not as written."""

    trace: PathOrUrl
    id: TensorId
    tensor: LogicalTensor
    is_reference: bool  # or of the run that is compared with it

    @property
    def cost(self) -> int:
        return _JOB_COST + _cost_of(self.tensor)

    @property
    def name(self) -> str:
        return str(self.id)

    def run(self, place: Workplace) -> None:
        place.instrument(BlockReader, self.trace).finish(self.tensor)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExamineJob:
    """A closer look at a suspect: `before` is its value before the step, where it has one."""

    reference: PathOrUrl
    candidate: PathOrUrl
    result: TensorResult
    pair: tuple[LogicalTensor, LogicalTensor]
    scale: float
    before: LogicalTensor | None
    sizes: Mapping[str, int]
    mesh: Mesh

    @property
    def cost(self) -> int:
        return _JOB_COST + sum(map(_cost_of, self.pair))

    @property
    def name(self) -> str:
        return str(self.result.id)

    def run(self, place: Workplace) -> Detail:
        examiner = place.instrument(Examiner, self.reference, self.candidate)
        return examiner.examine(
            self.result,
            *self.pair,
            self.scale,
            before=self.before,
            sizes=self.sizes,
            mesh=self.mesh,
        )


def _cost_of(tensor: LogicalTensor) -> int:
    """Most replicas have the bytes of what they repeat, and are not read."""
    pieces, replicas = (AlikePieces.of(side).records for side in (tensor.pieces, tensor.replicas))
    read_bytes = int(pieces.sizes.clip(0).sum())
    return _RECORD_COST * (len(pieces) + len(replicas)) + read_bytes
