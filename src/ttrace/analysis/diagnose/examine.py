"""Details of suspects: shard map, tiles of the error, distances in ULP, worst rows, wrong ranks.

Enters: aligned pairs, their verdicts, and readers of both traces. Leaves: frozen plain data for the
report (core/detail.py). Every suspect is read once more, block by block, so there are only a few of
them; nothing is judged again.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch

from ttrace.analysis.diagnose.mistakes import diagnose
from ttrace.analysis.diagnose.suspect import LARGEST, MOST_PIECES, Gathering, box_of
from ttrace.core.blame import Culprit
from ttrace.core.evidence import Detail, RowError, Shard
from ttrace.core.ids import Kind, TensorId
from ttrace.core.logical import LogicalTensor, Piece
from ttrace.core.results import TensorResult, Verdict
from ttrace.measure.accumulator import Accumulator
from ttrace.trace.blocks import BlockReader, Index, blocks
from ttrace.trace.spans import SpanReader

SUSPECTS = 24  # chosen: more than a person opens; each costs one more pass over both tensors
NEAREST = 3  # chosen: a clean run has something to look at too
CELLS = 64  # chosen: a wrong shard of 64 ranks is still a block of its own
WORST_ROWS = 8  # chosen
_UPDATED = (Kind.PARAM, Kind.MAIN_GRAD, Kind.OPTIMIZER, Kind.BUFFER)  # anew in every step
_ULP_BUCKETS = 33  # theorem: finite fp32 are less than 2**32 apart


def suspects(results: Sequence[TensorResult], culprits: Sequence[Culprit]) -> list[TensorResult]:
    """What people look at first: culprits' evidence, failures, what is undecided, the nearest."""
    by_id = {result.id: result for result in results}
    named = [by_id[id_] for culprit in culprits for id_ in culprit.evidence if id_ in by_id]
    failed = [result for result in results if result.verdict.is_failure]
    unsure = [result for result in results if result.verdict is Verdict.UNDECIDED]
    nearest = sorted(results, key=lambda result: -(result.ratio or 0.0))[:NEAREST]
    unique: dict[TensorId, TensorResult] = {r.id: r for r in (*named, *failed, *unsure, *nearest)}
    measured = [result for result in unique.values() if result.statistics is not None]
    return measured[:SUSPECTS]


def earlier(id_: TensorId) -> TensorId | None:
    """The tensor that this one should be an update of."""
    if id_.kind is Kind.PARAM_AFTER:
        return replace(id_, kind=Kind.PARAM)
    return replace(id_, step=id_.step - 1) if id_.kind in _UPDATED and id_.step else None


def with_ranks(
    results: Sequence[TensorResult], details: Sequence[Detail]
) -> tuple[TensorResult, ...]:
    """Where a closer look found some ranks wrong and others right, the verdict says which."""
    wrong = {detail.id: detail.wrong_ranks for detail in details}
    return tuple(
        replace(result, ranks=wrong[result.id])
        if result.verdict.is_failure and not result.ranks and wrong.get(result.id)
        else result
        for result in results
    )


def with_diagnoses(culprits: Sequence[Culprit], details: Sequence[Detail]) -> tuple[Culprit, ...]:
    """Each culprit with the mistake that the first of its evidence looks like."""
    known = {detail.id: detail.diagnosis for detail in details if detail.diagnosis is not None}

    def diagnosed(culprit: Culprit) -> Culprit:
        found = next((known[id_] for id_ in culprit.evidence if id_ in known), None)
        return replace(culprit, diagnosis=found)

    return tuple(map(diagnosed, culprits))


class Examiner:
    """Reads pairs of logical tensors once more, for those who want to look closely."""

    def __init__(self, reference: SpanReader, candidate: SpanReader) -> None:
        self._reference = BlockReader(reference)
        self._candidate = BlockReader(candidate)
        self._piece = BlockReader(candidate)

    def examine(
        self,
        result: TensorResult,
        reference: LogicalTensor,
        candidate: LogicalTensor,
        scale: float = 1.0,
        *,
        before: LogicalTensor | None = None,
        sizes: Mapping[str, int] | None = None,
    ) -> Detail:
        """`scale`: by what the candidate is larger, as in the comparison.

        `before` is the candidate's value before the step, `sizes` are those of mesh axes.
        """
        shape = reference.shape
        picture = _Picture(shape)
        whole = Gathering(reference, candidate)
        parts = [
            *((piece, _role(piece, "shard")) for piece in candidate.pieces),
            *((piece, _role(piece, "replica")) for piece in candidate.replicas),
        ][:MOST_PIECES]  # more cannot be told apart in a drawing
        errors = [Accumulator() for _ in parts]
        spreads = [Accumulator() for _ in parts]
        for start, stop in blocks(shape):
            expected = self._reference.read(reference.pieces, shape, start, stop)
            found = self._candidate.read(candidate.pieces, shape, start, stop)
            for (piece, _), error, spread in zip(parts, errors, spreads, strict=True):
                for place, values in self._piece.read_piece(piece, shape, start, stop):
                    spread.update(found[place], values)
                    values = values / scale if scale != 1 else values
                    error.update(expected[place], values)
                    whole.add_held(piece, values, start, place)
            found = found / scale if scale != 1 else found
            picture.add(expected, found, start)
            whole.add(expected, found, start, stop)
        allowed = None if result.tolerance is None else result.tolerance.error_norm
        volume = max(1, reference.volume)
        shards = tuple(
            _shard(piece, role, error, spread, allowed, volume)
            for (piece, role), error, spread in zip(parts, errors, spreads, strict=True)
        )
        suspect = whole.suspect(
            allowed if result.verdict.is_failure else None,
            before=self._read_whole(before),
            sizes=sizes or {},
            agrees=all(shard.agrees for shard in shards),
        )
        return Detail(
            id=result.id,
            shape=shape,
            shards=shards,
            tiles=picture.tiles(),
            reference_rms=math.sqrt(picture.reference_squared / volume),
            allowed_rms=None if allowed is None else allowed / math.sqrt(volume),
            ulp=picture.ulp(),
            worst_rows=picture.worst_rows(candidate),
            wrong_ranks=_wrong_ranks(shards),
            diagnosis=None if suspect is None else diagnose(suspect),
        )

    def _read_whole(self, tensor: LogicalTensor | None) -> torch.Tensor | None:
        if tensor is None or tensor.gaps or tensor.volume > LARGEST:
            return None
        whole = torch.empty(tensor.shape, dtype=torch.float64)
        for start, stop in blocks(tensor.shape):
            values = self._piece.read(tensor.pieces, tensor.shape, start, stop)
            whole[box_of(start, stop)] = values.double()
        return whole


class _Picture:
    """Adds up what is drawn of one tensor, seen as a matrix, from its blocks."""

    def __init__(self, shape: Sequence[int]) -> None:
        self._shape = tuple(shape) or (1,)
        self._rows, self._columns = math.prod(self._shape[:-1]), self._shape[-1]
        cells = (min(CELLS, self._rows), min(CELLS, self._columns))
        self._squares = torch.zeros(cells, dtype=torch.float64)
        self._counts = torch.zeros(cells, dtype=torch.float64)
        self._ulp = torch.zeros(_ULP_BUCKETS, dtype=torch.int64)
        self._has_ulp = True
        self._worst: dict[int, tuple[float, float]] = {}
        self.reference_squared = 0.0

    def add(self, expected: torch.Tensor, found: torch.Tensor, start: Index) -> None:
        first_row = int(np.ravel_multi_index(start[:-1], self._shape[:-1])) if start[:-1] else 0
        first_column = start[-1] if start else 0
        width = expected.shape[-1] if expected.dim() else 1
        left, right = _matrix(expected, width), _matrix(found, width)
        squares = (right - left).square().nan_to_num_(0.0, 0.0, 0.0)
        reference = left.square().nan_to_num_(0.0, 0.0, 0.0).sum(1)
        self.reference_squared += float(reference.sum())
        rows = torch.arange(first_row, first_row + len(left)) * len(self._squares) // self._rows
        columns = torch.arange(first_column, first_column + width)
        columns = columns * self._squares.shape[1] // self._columns
        _add_cells(self._squares, squares, rows, columns)
        _add_cells(self._counts, torch.ones_like(squares), rows, columns)
        self._add_rows(squares.sum(1), reference, first_row)
        self._add_ulp(expected, found)

    def _add_rows(self, errors: torch.Tensor, reference: torch.Tensor, first: int) -> None:
        largest = torch.topk(errors, min(WORST_ROWS, len(errors)))
        for error, index in zip(largest.values.tolist(), largest.indices.tolist(), strict=True):
            # A row longer than a block comes in parts.
            before = self._worst.get(first + index, (0.0, 0.0))
            self._worst[first + index] = (before[0] + error, before[1] + float(reference[index]))
        kept = sorted(self._worst.items(), key=lambda item: -item[1][0])[:WORST_ROWS]
        self._worst = {row: norms for row, norms in kept if norms[0] > 0}

    def _add_ulp(self, expected: torch.Tensor, found: torch.Tensor) -> None:
        if not (expected.is_floating_point() and found.is_floating_point()):
            self._has_ulp = False
            return
        coarse = max(expected.dtype, found.dtype, key=lambda dtype: torch.finfo(dtype).eps)
        left, right = expected.to(coarse), found.to(coarse)
        whole = {2: torch.int16, 4: torch.int32}.get(coarse.itemsize)
        if whole is None:
            self._has_ulp = False
            return
        finite = left.isfinite() & right.isfinite()
        distance = (_in_order(left[finite], whole) - _in_order(right[finite], whole)).abs()
        bucket = torch.frexp(distance.double()).exponent  # 0 for 0, n for 2**(n-1) to 2**n - 1
        self._ulp += torch.bincount(bucket.long(), minlength=_ULP_BUCKETS)

    def tiles(self) -> tuple[tuple[float, ...], ...]:
        cells = (self._squares / self._counts.clamp(min=1)).sqrt()
        # Two digits are more than a colour shows.
        return tuple(tuple(float(f"{value:.2g}") for value in row) for row in cells.tolist())

    def ulp(self) -> tuple[int, ...]:
        counts = self._ulp.tolist()
        while counts and not counts[-1]:
            counts.pop()
        return tuple(counts) if self._has_ulp else ()

    def worst_rows(self, candidate: LogicalTensor) -> tuple[RowError, ...]:
        found = []
        for row, (error, reference) in self._worst.items():
            index = tuple(int(i) for i in np.unravel_index(row, self._shape[:-1] or (1,)))
            index = index if len(self._shape) > 1 else ()
            ranks = _holders(candidate, index)
            found.append(
                RowError(
                    index=index,
                    error_norm=math.sqrt(error),
                    reference_norm=math.sqrt(reference),
                    ranks=ranks,
                )
            )
        return tuple(found)


def _add_cells(
    cells: torch.Tensor, values: torch.Tensor, rows: torch.Tensor, columns: torch.Tensor
) -> None:
    narrow = torch.zeros((len(values), cells.shape[1]), dtype=torch.float64)
    cells.index_add_(0, rows, narrow.index_add_(1, columns, values))


def _matrix(block: torch.Tensor, width: int) -> torch.Tensor:
    real = block.abs() if block.is_complex() else block
    return real.double().reshape(-1, width)


def _in_order(values: torch.Tensor, whole: torch.dtype) -> torch.Tensor:
    """Floats as whole numbers in which neighbours differ by 1, and -0 is 0."""
    bits = values.contiguous().view(whole).long()
    lowest = torch.iinfo(whole).min
    return torch.where(bits < 0, lowest - bits, bits)


def _role(piece: Piece, role: str) -> str:
    if piece.recompute:
        return "recomputed"
    return "sum" if len(piece.records) > 1 else role


def _shard(
    piece: Piece,
    role: str,
    error: Accumulator,
    spread: Accumulator,
    allowed: float | None,
    volume: int,
) -> Shard:
    found = error.result()
    ratio = None
    if allowed is not None:
        share = allowed * math.sqrt(found.count / volume)
        ratio = found.error_norm / share if share else math.inf if found.error_norm else 0.0
    return Shard(
        ranks=piece.ranks,
        microbatches=tuple(sorted({record.microbatch for record in piece.records})),
        role=role,
        runs=tuple(
            tuple((run.start, run.length) for run in runs if run.start is not None)
            for runs in piece.layout.runs
        ),
        relative_error=found.relative_error,
        ratio=ratio,
        agrees=spread.result().equal,
    )


def _wrong_ranks(shards: Iterable[Shard]) -> tuple[int, ...]:
    """Ranks of the parts above their share; empty when that is all of them, or none."""
    shards = [shard for shard in shards if shard.ratio is not None]
    every = {rank for shard in shards for rank in shard.ranks}
    wrong = {rank for shard in shards for rank in shard.ranks if (shard.ratio or 0.0) > 1}
    return tuple(sorted(wrong)) if wrong != every else ()


def _holders(tensor: LogicalTensor, index: Sequence[int]) -> tuple[int, ...]:
    """The ranks that hold a part of this row."""
    ranks: set[int] = set()
    for piece in (*tensor.pieces, *tensor.replicas):
        runs = piece.layout.runs[: len(index)]
        inside = all(
            any(
                run.start is not None and run.start <= i < run.start + run.length
                for run in dim_runs
            )
            for i, dim_runs in zip(index, runs, strict=True)
        )
        if inside:
            ranks.update(piece.ranks)
    return tuple(sorted(ranks))
