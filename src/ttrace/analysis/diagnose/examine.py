"""Details of suspects: shard map, tiles of the error, distances in ULP, worst rows, wrong ranks.

Enters: aligned pairs, their verdicts, and readers of both traces. Leaves: frozen plain data for the
report (core/evidence.py). A few suspects are read once more, whole or in a sample of boxes; where
nothing fails or is undecided, nothing is read. Nothing is judged again. Of suspects that have
fingerprints only, cells tell which ranks are wrong.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from ttrace.analysis.diagnose.mistakes import diagnose, is_open, nearest, of_precision
from ttrace.analysis.diagnose.picture import Picture
from ttrace.analysis.diagnose.quantised import CodesReader
from ttrace.analysis.diagnose.sample import Sample, sample
from ttrace.analysis.diagnose.suspect import LARGEST, MOST_PIECES, Gathering, window_of
from ttrace.core.blame import Culprit, Diagnosis, Nearest
from ttrace.core.evidence import Detail, Scalar, Shard
from ttrace.core.form import unlike
from ttrace.core.ids import Kind, TensorId
from ttrace.core.logical import LogicalTensor, Pair, Piece
from ttrace.core.mesh import NO_MESH, Mesh
from ttrace.core.results import TensorResult, Verdict
from ttrace.measure.accumulator import Accumulator
from ttrace.measure.cells import Array, energies
from ttrace.trace.blocks import BlockPair, BlockReader, PairReader, Window, blocks
from ttrace.trace.sketches import (
    CellsDoNotFit,
    SketchReader,
    common_sizes,
    is_sketched,
    whole_cells,
)
from ttrace.trace.spans import SpanReader

SUSPECTS = 24  # chosen: more than a person opens
# What should differ from what it was before.
_UPDATES = (Kind.PARAM, Kind.MAIN_GRAD, Kind.OPTIMIZER, Kind.BUFFER, Kind.PARAM_AFTER)


def suspects(results: Sequence[TensorResult], culprits: Sequence[Culprit]) -> list[TensorResult]:
    """What people look at first: culprits' evidence, failures, what is undecided; 24 at most."""
    by_id = {result.id: result for result in results}
    named = [by_id[id_] for culprit in culprits for id_ in culprit.evidence if id_ in by_id]
    failed = [result for result in results if result.verdict.is_failure]
    unsure = [result for result in results if result.verdict is Verdict.UNDECIDED]
    unique: dict[TensorId, TensorResult] = {r.id: r for r in (*named, *failed, *unsure)}
    measured = [result for result in unique.values() if result.statistics is not None]
    return measured[:SUSPECTS]


def earlier(id_: TensorId) -> TensorId | None:
    """The tensor that this one should be an update of, or the same one of the step before."""
    if id_.kind is Kind.PARAM_AFTER:
        return replace(id_, kind=Kind.PARAM)
    return replace(id_, step=id_.step - 1) if id_.step else None


def with_ranks(
    results: Sequence[TensorResult],
    details: Sequence[Detail],
    by_cells: Mapping[TensorId, tuple[int, ...]],
) -> tuple[TensorResult, ...]:
    """Where a closer look found some ranks wrong and others right, the verdict says which.

    Replicas that disagree and are all wrong are wrong everywhere. `by_cells`: what fingerprints
    tell, of which there are no details.
    """
    known = {detail.id: detail for detail in details}

    def placed(result: TensorResult) -> TensorResult:
        detail = known.get(result.id)
        if not result.verdict.is_failure:
            return result
        if detail is None:
            return replace(result, ranks=result.ranks or by_cells.get(result.id, ()))
        ranks = () if detail.is_wrong_everywhere else result.ranks or detail.wrong_ranks
        return replace(result, ranks=ranks)

    return tuple(map(placed, results))


def with_diagnoses(culprits: Sequence[Culprit], details: Sequence[Detail]) -> tuple[Culprit, ...]:
    """Each culprit with the mistake that the first of its evidence looks like."""
    known = {detail.id: detail.diagnosis for detail in details if detail.diagnosis is not None}
    near = {detail.id: detail.nearest for detail in details if detail.nearest is not None}

    def diagnosed(culprit: Culprit) -> Culprit:
        found = next((known[id_] for id_ in culprit.evidence if id_ in known), None)
        likeness = next((near[id_] for id_ in culprit.evidence[:1] if id_ in near), None)
        return replace(culprit, diagnosis=found, nearest=None if found else likeness)

    return tuple(map(diagnosed, culprits))


class Examiner:
    """Reads pairs of logical tensors once more, for those who want to look closely."""

    def __init__(self, reference: SpanReader, candidate: SpanReader) -> None:
        self._pairs = PairReader(reference, candidate)
        self._before = BlockReader(candidate)
        self._codes = CodesReader(reference, candidate)

    def examine(
        self,
        result: TensorResult,
        reference: LogicalTensor,
        candidate: LogicalTensor,
        scale: float = 1.0,
        *,
        before: LogicalTensor | None = None,
        sizes: Mapping[str, int] | None = None,
        mesh: Mesh = NO_MESH,
    ) -> Detail:
        """`scale`: by what the candidate is larger, as in the comparison.

        `before` is the candidate's value before the step, `sizes` are those of mesh axes and more.
        """
        look = _Look.at(result, reference, candidate)
        self._read(look, scale)
        shards = look.shards()
        suspect = look.gathering.suspect(
            look.open_allowed,
            before=self._read_whole(before) if result.id.kind in _UPDATES else None,
            sizes=sizes or {},
            agrees=all(shard.agrees for shard in shards),
            axes=_disagreeing(shards, mesh),
            added=tuple(_adding(result.id, shards, mesh)),
        )
        diagnosis = of_precision(result)
        if diagnosis is None and look.open_allowed is not None:
            diagnosis = self._codes.diagnose(
                reference,
                candidate,
                look.open_allowed,
                (*look.sample.typical, *look.sample.worst),
                factor=scale,
                before=before,
                mesh=mesh,
            )
        if diagnosis is None and suspect is not None:
            diagnosis = diagnose(suspect)
        likeness = None if suspect is None or diagnosis else nearest(suspect)
        return look.detail(shards, diagnosis, likeness)

    def _read(self, look: _Look, scale: float) -> None:
        """One pass over the boxes of both tensors, and over what every rank holds of them."""
        for is_worst, boxes in ((False, look.sample.typical), (True, look.sample.worst)):
            for block in self._pairs.walk(look.reference, look.candidate, boxes):
                for part, window, held in self._held(look.parts, look.candidate, block):
                    values = held / scale if scale != 1 else held
                    part.add(block.expected[window], values, is_worst=is_worst)
                    look.gathering.add_held(
                        part.piece, values, block.start, window, is_replica=part.is_replica
                    )
                found = block.found / scale if scale != 1 else block.found
                look.picture.add(block.expected, found, block.start)
                look.gathering.add(block.expected, found, block.start, block.stop)

    def _held(
        self, parts: Iterable[_Part], candidate: LogicalTensor, block: BlockPair
    ) -> Iterator[tuple[_Part, Window, torch.Tensor]]:
        """What every part holds of a box. What makes up the candidate has been read already."""
        for part in parts:
            if part.is_replica:
                for window, values in self._pairs.held(part.piece, candidate, block):
                    part.spread.update(block.found[window], values)
                    yield part, window, values
            else:
                for _, window in part.piece.layout.pieces(block.start, block.stop):
                    yield part, window, block.found[window]

    def _read_whole(self, tensor: LogicalTensor | None) -> torch.Tensor | None:
        if tensor is None or tensor.gaps or tensor.volume > LARGEST:
            return None
        whole = torch.empty(tensor.shape, dtype=torch.float64)
        for start, stop in blocks(tensor.shape):
            values = self._before.read(tensor.pieces, tensor.shape, start, stop)
            whole[window_of(start, stop)] = values.double()
        return whole


@dataclass(frozen=True, slots=True, kw_only=True)
class _Look:
    """A closer look at one suspect: where to look, and what is added up there."""

    result: TensorResult
    reference: LogicalTensor
    candidate: LogicalTensor
    sample: Sample
    parts: Sequence[_Part]
    picture: Picture
    gathering: Gathering

    @classmethod
    def at(cls, result: TensorResult, reference: LogicalTensor, candidate: LogicalTensor) -> _Look:
        parts = _parts(candidate)
        layouts = [part.piece.layout for part in parts]
        chosen = sample(reference.shape, layouts, result.statistics)
        return cls(
            result=result,
            reference=reference,
            candidate=candidate,
            sample=chosen,
            parts=parts,
            picture=Picture(reference.shape, chosen.cells),
            gathering=Gathering(reference, candidate),
        )

    @property
    def allowed(self) -> float | None:
        """The norm of the error that rounding explains."""
        return None if self.result.tolerance is None else self.result.tolerance.error_norm

    @property
    def open_allowed(self) -> float | None:
        """The same, where the verdict leaves open what kind of mistake it is."""
        is_wrong = self.result.verdict.is_failure and is_open(self.result)
        return self.allowed if is_wrong else None

    @property
    def _volume(self) -> int:
        return max(1, self.reference.volume)

    def shards(self) -> tuple[Shard, ...]:
        return tuple(part.shard(self.allowed, self._volume) for part in self.parts)

    def detail(
        self, shards: Sequence[Shard], diagnosis: Diagnosis | None, likeness: Nearest | None
    ) -> Detail:
        is_number = self.reference.volume == 1
        numbers = (Scalar(ranks=part.piece.ranks, value=part.value) for part in self.parts)
        return Detail(
            id=self.result.id,
            shape=self.reference.shape,
            examined=self.picture.examined if self.sample.is_part else None,
            shards=tuple(shards),
            tiles=self.picture.tiles(),
            reference_rms=self.picture.reference_rms,
            allowed_rms=None if self.allowed is None else self.allowed / math.sqrt(self._volume),
            ulp=self.picture.ulp(),
            worst_rows=self.picture.worst_rows(self.candidate),
            wrong_ranks=_wrong_ranks(shards),
            diagnosis=diagnosis,
            nearest=likeness,
            elements=self.picture.worst_elements(self.candidate),
            scalars=tuple(numbers) if is_number else (),
        )


@dataclass(slots=True, kw_only=True)
class _Part:
    """What is added up of one piece of the candidate, in typical boxes and in the worst."""

    piece: Piece
    is_replica: bool
    typical: Accumulator = field(default_factory=Accumulator)
    worst: Accumulator = field(default_factory=Accumulator)
    spread: Accumulator = field(default_factory=Accumulator)  # between a replica and the original
    typical_elements: int = 0
    worst_elements: int = 0
    value: float = math.nan  # of a tensor of one element, that one

    def add(self, expected: torch.Tensor, values: torch.Tensor, *, is_worst: bool) -> None:
        if values.numel() == 1:
            self.value = float(values.abs() if values.is_complex() else values)
        if is_worst:
            self.worst.update(expected, values)
            self.worst_elements += values.numel()
        else:
            self.typical.update(expected, values)
            self.typical_elements += values.numel()

    def shard(self, allowed: float | None, volume: int) -> Shard:
        """Norms are of the whole part: what was not looked at is taken for typical."""
        held = self.piece.layout.volume
        weight = math.sqrt((held - self.worst_elements) / max(1, self.typical_elements))
        typical, worst = self.typical.result(), self.worst.result()
        error = math.hypot(weight * typical.error_norm, worst.error_norm)
        reference = math.hypot(weight * typical.reference_norm, worst.reference_norm)
        share = None if allowed is None else allowed * math.sqrt(held / volume)
        return Shard(
            ranks=self.piece.ranks,
            microbatches=tuple(sorted({record.microbatch for record in self.piece.records})),
            role=_role(self.piece, is_replica=self.is_replica),
            runs=tuple(
                tuple((run.start, run.length) for run in runs if run.start is not None)
                for runs in self.piece.layout.runs
            ),
            relative_error=_over(error, reference),
            ratio=None if share is None else _over(error, share),
            agrees=self.spread.result().equal,
        )


def _parts(candidate: LogicalTensor) -> list[_Part]:
    """More than so many cannot be told apart in a drawing."""
    pieces = [_Part(piece=piece, is_replica=False) for piece in candidate.pieces]
    replicas = [_Part(piece=piece, is_replica=True) for piece in candidate.replicas]
    return [*pieces, *replicas][:MOST_PIECES]


def _role(piece: Piece, *, is_replica: bool) -> str:
    if piece.recompute:
        return "recomputed"
    if len(piece.records) > 1:
        return "sum"
    return "replica" if is_replica else "shard"


def _over(error: float, unit: float) -> float:
    if unit:
        return error / unit
    return math.inf if error else 0.0


def _disagreeing(shards: Sequence[Shard], mesh: Mesh) -> tuple[str, ...]:
    """The axes of the mesh along which replicas are not what they repeat."""
    apart = [rank for shard in shards if not shard.agrees for rank in shard.ranks]
    originals = [rank for shard in shards if shard.agrees for rank in shard.ranks]
    return mesh.between(apart, originals)


def _adding(id_: TensorId, shards: Sequence[Shard], mesh: Mesh) -> Iterator[str]:
    """Axes along which ranks may hold terms of a sum: not those that hold other samples."""
    has_samples = id_.kind.is_activation or id_.kind.is_gradient_of_activation
    first = {rank: shard.runs[:1] for shard in reversed(shards) for rank in shard.ranks}
    for axis, _ in mesh.naming:
        across = [pair for pair in mesh.along(axis) if pair[0] in first and pair[1] in first]
        if not has_samples or all(first[one] == first[other] for one, other in across):
            yield axis


def _wrong_ranks(shards: Iterable[Shard]) -> tuple[int, ...]:
    """Ranks of the parts above their share; empty when that is all of them, or none."""
    shards = [shard for shard in shards if shard.ratio is not None]
    every = {rank for shard in shards for rank in shard.ranks}
    wrong = {rank for shard in shards for rank in shard.ranks if (shard.ratio or 0.0) > 1}
    return tuple(sorted(wrong)) if wrong != every else ()


def wrong_by_cells(
    spans: tuple[SpanReader, SpanReader],
    suspects: Sequence[TensorResult],
    pairs: Mapping[TensorId, Pair],
    scale_of: Callable[[TensorId], float],
) -> dict[TensorId, tuple[int, ...]]:
    """The ranks of every suspect that are wrong where others are right."""
    reference, candidate = map(SketchReader, spans)
    found = {}
    for result in suspects:
        expected, actual = pairs[result.id]
        if result.tolerance is None or not is_sketched(expected, actual):
            continue
        sizes = common_sizes(expected, actual)
        try:
            sums = reference.read(expected.pieces, expected.shape, sizes).sums
            others = candidate.read(actual.pieces, actual.shape, sizes).sums
        except CellsDoNotFit:
            continue
        with np.errstate(invalid="ignore"):
            errors = energies(others / scale_of(result.id) - sums, len(sizes))
        found[result.id] = _ranks_with_wrong_cells(
            errors, sizes, actual, result.tolerance.error_norm
        )
    return found


def _ranks_with_wrong_cells(
    errors: Array, sizes: Sequence[int], candidate: LogicalTensor, allowed: float
) -> tuple[int, ...]:
    # Rows [0:4] on rank 0 and [4:8] on rank 1, 2 allowed for all: a share of 1.4 for each half.
    #     errors 0.1 and 3    rank 1, and who holds [4:8] alike
    #     errors 3 and 3      (): all are wrong, which says nothing of ranks
    if any(len(piece.records) > 1 for piece in candidate.pieces):
        return ()
    wrong, every = set(), set()
    for piece in candidate.pieces:
        held = whole_cells([piece.layout], candidate.shape, tuple(sizes))
        if held.any():
            share = allowed * math.sqrt(piece.layout.volume / candidate.volume)
            every.add(piece.layout)
            wrong |= {piece.layout} if math.sqrt(float(errors[held].sum())) > share else set()
    if wrong == every:
        return ()
    apart = {rank for same in unlike(candidate) for piece in same for rank in piece.ranks}
    same = (piece for piece in candidate.replicas if not apart.intersection(piece.ranks))
    pieces = [*candidate.pieces, *same]
    return tuple(sorted({r for piece in pieces if piece.layout in wrong for r in piece.ranks}))
