"""Sketches of shards add up to the sketch of the whole, whatever the layout."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.support.logical import ID
from ttrace.analysis.compare.measure import Comparator
from ttrace.analysis.compare.measured import Measured
from ttrace.core.form import records_of
from ttrace.core.layout import Layout
from ttrace.core.logical import LogicalTensor, Piece, assemble
from ttrace.core.record import RankInfo, Record, Summary
from ttrace.errors import CorruptTrace
from ttrace.trace.dtypes import dtype_name
from ttrace.trace.fingerprint import FingerprintPayload, is_fingerprint
from ttrace.trace.payload import FULL, Payload
from ttrace.trace.reader import Trace
from ttrace.trace.spans import SpanReader
from ttrace.trace.writer import TraceWriter

SHAPE = (96, 512)
SMALL = FingerprintPayload(fewest=1024)
WHOLE = Layout.full(SHAPE)
Parts = dict[int, tuple[Layout, torch.Tensor]]


def written(folder: Path, parts: Parts, payload: Payload, *, knows: bool = True) -> LogicalTensor:
    """What ranks hold of one tensor; `knows`: their records say where they sit."""
    for rank, (layout, values) in parts.items():
        writer = TraceWriter(folder, RankInfo(rank=rank, world_size=len(parts)))
        record = Record(
            id=ID,
            rank=rank,
            sequence=0,
            dtype=dtype_name(values.dtype),
            shape=tuple(values.shape),
            layout=layout if knows else None,
        )
        writer.write(record, values, payload)
        writer.close(Summary(steps=1, hooks_expected=0, hooks_fired=0))
    records = Trace.open(folder).by_id()[ID]
    pieces: dict[Layout, list[Record]] = {}
    for record in records:
        layout = parts[record.rank][0]
        pieces.setdefault(layout, []).append(record)
    found = [
        Piece(layout=layout, records=tuple(group) if layout.partial else (record,))
        for layout, group in pieces.items()
        for record in (group[:1] if layout.partial else group)
    ]
    assert all(is_fingerprint(record) == (payload is not FULL) for record in records)
    return assemble(SHAPE, found)


def measured(
    folder: Path,
    reference: torch.Tensor,
    parts: Parts,
    *,
    knows: bool = True,
    payloads: tuple[Payload, Payload] = (SMALL, SMALL),
) -> Measured:
    expected = written(folder / "r", {0: (WHOLE, reference)}, payloads[0])
    found = written(folder / "c", parts, payloads[1], knows=knows)
    with SpanReader(folder / "r") as one, SpanReader(folder / "c") as other:
        return Comparator(one, other).measure(expected, found)


def made() -> torch.Tensor:
    return torch.randn(SHAPE, generator=torch.Generator().manual_seed(3))


def cut(values: torch.Tensor, layout: Layout) -> torch.Tensor:
    local = values.new_empty(layout.local_shape)
    for inside, place in layout.pieces([0] * values.ndim, values.shape):
        local[inside] = values[place]
    return local


def split(values: torch.Tensor, layouts: list[Layout]) -> Parts:
    return {rank: (layout, cut(values, layout)) for rank, layout in enumerate(layouts)}


LAYOUTS: dict[str, list[Layout]] = {
    "rows": [WHOLE.shard(0, index, 4) for index in range(4)],
    "columns": [WHOLE.shard(1, index, 4) for index in range(4)],
    "both": [WHOLE.shard(0, i, 2).shard(1, j, 2) for i in range(2) for j in range(2)],
    "zigzag": [WHOLE.zigzag(0, index, 2) for index in range(2)],
    "interleaved": [WHOLE.interleaved(1, (256, 128, 128), index, 2) for index in range(2)],
    "uneven": [WHOLE.shard(1, index, 3) for index in range(3)],
    "whole": [WHOLE],
}


@pytest.mark.parametrize("payloads", [(SMALL, SMALL), (FULL, SMALL), (SMALL, FULL)])
@pytest.mark.parametrize("layouts", LAYOUTS.values(), ids=LAYOUTS)
def test_shards_that_know_their_place_are_equal_in_every_layout(
    tmp_path: Path, layouts: list[Layout], payloads: tuple[Payload, Payload]
) -> None:
    found = measured(tmp_path, made(), split(made(), layouts), payloads=payloads)
    assert found.cells_fit
    assert found.statistics.equal
    assert found.statistics.reference_norm == pytest.approx(float(made().norm()), rel=1e-6)


@pytest.mark.parametrize("name", ["rows", "columns", "both", "zigzag", "whole"])
def test_shards_that_do_not_know_their_place_are_put_together_later(
    tmp_path: Path, name: str
) -> None:
    found = measured(tmp_path, made(), split(made(), LAYOUTS[name]), knows=False)
    assert found.cells_fit
    assert found.statistics.equal


def test_shards_that_are_cut_inside_of_cells_are_not_judged(tmp_path: Path) -> None:
    found = measured(tmp_path, made(), split(made(), LAYOUTS["uneven"]), knows=False)
    assert not found.cells_fit


@pytest.mark.parametrize("name", ["uneven", "rows"])
@pytest.mark.parametrize("rank", [1, 3])
def test_bytes_are_verified_where_they_are_read_and_where_cells_do_not_fit(
    tmp_path: Path, name: str, rank: int
) -> None:
    """Rank 3 holds what rank 0 does by its checksum, and so it is not read."""
    layouts = [*LAYOUTS[name][:3], LAYOUTS[name][0]]
    expected = written(tmp_path / "r", {0: (WHOLE, made())}, SMALL)
    found = written(tmp_path / "c", split(made(), layouts), SMALL, knows=False)
    record = next(r for r in records_of(found) if r.rank == rank)
    assert record.location is not None
    path = tmp_path / "c" / f"rank-{rank:05d}" / record.location.segment
    data = bytearray(path.read_bytes())
    data[record.location.offset] ^= 1
    path.write_bytes(data)
    with SpanReader(tmp_path / "r") as one, SpanReader(tmp_path / "c") as other:
        comparator = Comparator(one, other)
        if rank == 3:
            assert not comparator.measure(expected, found).disagreements
            return
        with pytest.raises(CorruptTrace, match=f"rank {rank}"):
            comparator.measure(expected, found)


def test_terms_of_a_partial_sum_add_up(tmp_path: Path) -> None:
    terms, layout = torch.randn(3, *SHAPE), WHOLE.summed_over("tp")
    parts = {rank: (layout, terms[rank]) for rank in range(3)}
    right = measured(tmp_path / "right", terms.sum(dim=0), parts).statistics
    assert right.relative_error < 1e-6
    del parts[2]
    wrong = measured(tmp_path / "wrong", terms.sum(dim=0), parts).statistics
    assert wrong.relative_error == pytest.approx(float(terms[2].norm() / terms.sum(0).norm()), 0.2)


ERRORS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "noise": lambda values: values + 1e-3 * torch.randn(SHAPE),
    "factor": lambda values: values * 1.01,
    "shift": lambda values: values + 0.01,
    "row": lambda values: torch.cat([values[:17], values[17:18] * 2, values[18:]]),
}


@pytest.mark.parametrize("layouts", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("error", ERRORS.values(), ids=ERRORS)
def test_statistics_of_errors_are_near_those_of_all_values(
    tmp_path: Path, error: Callable[[torch.Tensor], torch.Tensor], layouts: list[Layout]
) -> None:
    wrong = error(made())
    found = measured(tmp_path, made(), split(wrong, layouts)).statistics
    whole = measured(tmp_path / "full", made(), split(wrong, layouts), payloads=(FULL, FULL))
    exact = whole.statistics
    assert found.error_norm == pytest.approx(exact.error_norm, rel=0.3)
    assert found.gain == pytest.approx(exact.gain, abs=0.05 * exact.relative_error)
    assert found.error_sum == pytest.approx(exact.error_sum, abs=1e-2)


@pytest.mark.parametrize("factor", [0.25, 0.999, 1.0001, 2.0, -1.0])
def test_a_factor_is_nothing_else(tmp_path: Path, factor: float) -> None:
    """However few sums there are: what is left beside the factor is rounding."""
    few = FingerprintPayload(fewest=64)
    parts = split(made() * factor, LAYOUTS["both"])
    found = measured(tmp_path, made(), parts, payloads=(few, few)).statistics
    assert found.gain == pytest.approx(factor, abs=1e-6)
    left = found.error_norm**2 - found.along_reference**2
    rounding = 2.0**-23 * found.error_norm * found.reference_norm  # of sums, which are float32
    assert abs(left) < 1e-4 * found.error_norm**2 + rounding


def test_the_place_of_an_error_is_its_cell(tmp_path: Path) -> None:
    wrong = made()
    wrong[17] *= 2
    found = measured(tmp_path, made(), {0: (WHOLE, wrong)}).statistics
    rows = next(part for part in found.slices if part.dims == (0,))
    assert rows.index[0] <= 17 < rows.index[0] + found.cells[0]


def test_replicas_that_differ_in_one_bit_disagree(tmp_path: Path) -> None:
    same = {rank: (WHOLE, made()) for rank in range(2)}
    assert not measured(tmp_path / "same", made(), same).disagreements
    other = made()
    other.view(torch.int32)[0, 0] += 1
    apart = {0: (WHOLE, made()), 1: (WHOLE, other)}
    (found,) = measured(tmp_path / "apart", made(), apart).disagreements
    assert found.ranks == (1,)


def test_a_number_that_is_none_is_counted_where_one_run_has_it(tmp_path: Path) -> None:
    masked, wrong = made(), made()
    masked[3, :4] = float("-inf")
    wrong[3, :4] = float("-inf")
    assert measured(tmp_path / "both", masked, {0: (WHOLE, wrong)}).statistics.equal
    wrong[40, 7] = float("nan")
    found = measured(tmp_path / "one", masked, {0: (WHOLE, wrong)}).statistics
    assert (found.nonfinite_reference, found.nonfinite_candidate) == (0, 1)
