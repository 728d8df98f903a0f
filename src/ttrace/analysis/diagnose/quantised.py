"""A suspect that both runs keep as codes and scales: which of the two is wrong.

    with the reference's scales it is right   its scales are wrong, or all of it by a factor
    with the reference's codes it is right    its codes are wrong
    each value is as near as both grids allow it was quantised under another scale: a stale one,
                                              or by the amax of another group

Enters: both logical tensors, and readers of both traces. Leaves: a diagnosis, where undoing its
mistake explains the error as any other diagnosis must. Nothing is held that grows with the tensor.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from ttrace.analysis.diagnose.sample import SampledBox
from ttrace.analysis.diagnose.suspect import MOST_PIECES, is_explained
from ttrace.core.blame import Diagnosis, Mistake, PartFactor
from ttrace.core.formats import format_of
from ttrace.core.logical import LogicalTensor, Piece
from ttrace.core.mesh import Mesh
from ttrace.core.quantised import QuantisedForm, largest_code
from ttrace.trace.blocks import BlockReader, Index, PairReader
from ttrace.trace.quantised import Aspect, form_of, kept_records, reading
from ttrace.trace.spans import SpanReader

_ALIKE = 1e-3  # chosen: scales of two ranks that reduced the same amax are the same numbers


class CodesReader:
    """Reads codes and scales of pairs that both runs keep so."""

    def __init__(self, reference: SpanReader, candidate: SpanReader) -> None:
        codes, scales = (reading(aspect) for aspect in (Aspect.CODES, Aspect.SCALES))
        self._codes = PairReader(reference, candidate, codes)
        self._scales = PairReader(reference, candidate, scales)
        self._before = BlockReader(candidate, scales)

    def diagnose(
        self,
        reference: LogicalTensor,
        candidate: LogicalTensor,
        allowed: float,
        boxes: Sequence[SampledBox],
        *,
        factor: float = 1.0,
        before: LogicalTensor | None = None,
        mesh: Mesh,
    ) -> Diagnosis | None:
        """By these boxes alone. `factor`: by what the candidate is larger.

        `before`: its value in the step before.
        """
        # Codes 2 and 4, scale 0.5 in the reference, scale 0.25 here: the error is 0.5 and 1.
        #     with the reference's scale   1 and 2, right: its scales are wrong
        #     with the reference's codes   still 0.5 and 1: not its codes
        # Half of the boxes were looked at: the error that is allowed is 1 / sqrt(2) of the whole's.
        kinds = _kinds(reference), _kinds(candidate)
        if not all(len(found) == 1 for found in kinds) or len(candidate.pieces) > MOST_PIECES:
            return None
        (expected,), (found,) = kinds
        looked_at = sum(math.prod(map(operator.sub, stop, start)) for start, stop in boxes)
        share = math.sqrt(looked_at / max(1, reference.volume))
        sums = _Sums(allowed=allowed * share, parts=[_Part(piece) for piece in candidate.pieces])
        was_kept = before is not None and before.shape == candidate.shape and _kinds(before)
        pairs = zip(
            self._codes.walk(reference, candidate, boxes),
            self._scales.walk(reference, candidate, boxes),
            strict=True,
        )
        for codes, scales in pairs:
            theirs = _Side(expected, codes.expected, scales.expected.double())
            ours = _Side(found, codes.found, scales.found.double() / factor)
            sums.add(theirs, ours, codes.start, codes.stop)
            if before is not None and was_kept and sums.is_stale:
                own = self._before.read(before.pieces, before.shape, scales.start, scales.stop)
                sums.is_stale = torch.equal(own, scales.found)
        sums.is_stale &= bool(was_kept)
        return sums.diagnosis(expected, found, mesh) if math.isfinite(sums.error) else None


class _Kind(NamedTuple):
    """What is told of a form, whatever the shape of the part that a rank holds."""

    codes: str
    block: tuple[int, ...]  # 0: all along the dim

    @classmethod
    def of(cls, form: QuantisedForm, shape: Sequence[int]) -> _Kind:
        pairs = zip(form.block, shape, strict=True)
        return cls(form.codes, tuple(0 if block >= size else block for block, size in pairs))


@dataclass(frozen=True, slots=True)
class _Side:
    """Codes and scales of a box of one run."""

    kind: _Kind
    codes: Tensor
    scales: Tensor

    @property
    def steps(self) -> Tensor:
        """To the next value of its grid, which grows with the value."""
        form = format_of(self.kind.codes)
        if form is None:
            return self.scales.abs()
        low = math.frexp(form.smallest_normal)[1]
        exponents = torch.frexp(self.codes.abs()).exponent.clamp(min=low)
        exponents[self.codes == 0] = low
        return torch.ldexp(self.scales.abs(), exponents - 1 - form.mantissa_bits)

    @property
    def is_largest(self) -> Tensor:
        return self.codes.abs() >= largest_code(self.kind.codes)


@dataclass(slots=True)
class _Part:
    """Scales of what some ranks hold, over the reference's."""

    piece: Piece
    logs: float = 0.0
    count: int = 0

    def add(self, ratios: Tensor) -> None:
        known = ratios[ratios.isfinite() & (ratios > 0)]
        self.logs += float(known.log().sum())
        self.count += known.numel()

    @property
    def factor(self) -> float:
        return math.exp(self.logs / self.count)


@dataclass(slots=True, kw_only=True)
class _Sums:
    """Squares of the error, and of what is left of it when one thing is undone."""

    allowed: float
    parts: Sequence[_Part]
    squared: float = 0.0
    by_scales: float = 0.0  # with the reference's scales
    by_codes: float = 0.0  # with the reference's codes
    by_grids: float = 0.0  # beyond half a step of both
    is_stale: bool = True  # so far
    has_one_scale: bool = True  # the reference, for all of the tensor
    _first: float | None = field(default=None)

    @property
    def error(self) -> float:
        return math.sqrt(self.squared)

    def add(self, theirs: _Side, ours: _Side, start: Index, stop: Index) -> None:
        expected, found = theirs.codes * theirs.scales, ours.codes * ours.scales
        apart = (found - expected).abs()
        self.squared += _square(apart)
        self.by_scales += _square(ours.codes * theirs.scales - expected)
        self.by_codes += _square(theirs.codes * ours.scales - expected)
        beyond = (apart - (theirs.steps + ours.steps) / 2).clamp(min=0)
        is_cut_off = ours.is_largest & (expected.abs() > found.abs()) & (expected * found > 0)
        self.by_grids += _square(beyond.masked_fill(is_cut_off, 0.0))
        self._first = float(theirs.scales.flatten()[0]) if self._first is None else self._first
        self.has_one_scale &= bool((theirs.scales == self._first).all())
        ratios = ours.scales / theirs.scales
        for part in self.parts:
            for _, window in part.piece.layout.pieces(start, stop):
                part.add(ratios[window])

    def diagnosis(self, theirs: _Kind, ours: _Kind, mesh: Mesh) -> Diagnosis | None:
        """The first that explains the error, where there is one."""
        if not self.squared:
            return None
        if self._explains(self.by_scales) and theirs == ours:
            return Diagnosis(mistake=Mistake.WRONG_SCALE, factors=self._factors())
        if self._explains(self.by_codes) and theirs == ours:
            return Diagnosis(mistake=Mistake.WRONG_CODES)
        if not self._explains(self.by_grids):
            return None
        if theirs.codes != ours.codes:
            return Diagnosis(
                mistake=Mistake.OTHER_CODES, dtype=ours.codes, reference_dtype=theirs.codes
            )
        if self.is_stale:
            return Diagnosis(mistake=Mistake.STALE_SCALE, factors=self._factors())
        if theirs != ours:
            return Diagnosis(mistake=Mistake.OTHER_BLOCKS)
        if self.has_one_scale and len(self._factors()) > 1:
            return Diagnosis(
                mistake=Mistake.SCALE_OF_EACH_PART, factors=self._factors(), axes=self._axes(mesh)
            )
        return Diagnosis(mistake=Mistake.OTHER_SCALE, factors=self._factors())

    def _explains(self, left: float) -> bool:
        return is_explained(math.sqrt(left), self.error, self.allowed)

    def _factors(self) -> tuple[PartFactor, ...]:
        """Ranks whose scales are off by the same factor are told together."""
        told: list[tuple[float, set[int]]] = []
        for part in (part for part in self.parts if part.count):
            near = next((r for f, r in told if abs(part.factor / f - 1) < _ALIKE), None)
            if near is None:
                told.append((part.factor, near := set()))
            near.update(part.piece.ranks)
        return tuple(PartFactor(ranks=tuple(sorted(r)), factor=factor) for factor, r in told)

    def _axes(self, mesh: Mesh) -> tuple[str, ...]:
        first, *others = self._factors()
        return mesh.between(first.ranks, [rank for other in others for rank in other.ranks])


def _kinds(tensor: LogicalTensor) -> set[_Kind]:
    return {_Kind.of(form_of(record), record.shape) for record in kept_records(tensor)}


def _square(values: Tensor) -> float:
    return float(values.double().square().sum())
