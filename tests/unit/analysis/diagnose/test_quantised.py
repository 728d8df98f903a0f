"""Of codes and scales it is told which are wrong; what is right, or off otherwise, is not."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support.kept import blockwise
from tests.support.logical import ID, write_kept, write_logical
from tests.support.made_results import tensor
from ttrace.analysis.diagnose.examine import Examiner
from ttrace.analysis.diagnose.quantised import CodesReader
from ttrace.analysis.diagnose.sample import SampledBox
from ttrace.core.blame import Diagnosis, Mistake, PartFactor
from ttrace.core.layout import Layout
from ttrace.core.logical import LogicalTensor
from ttrace.core.mesh import Mesh
from ttrace.core.quantised import QuantisedForm
from ttrace.report import wording
from ttrace.trace.blocks import blocks
from ttrace.trace.quantised import Quantised
from ttrace.trace.spans import SpanReader

SHAPE = (64, 128)
ROWS, ALL = (1, 128), SHAPE
FULL = Layout.full(SHAPE)
HALVES = tuple(FULL.shard(0, rank, 2) for rank in range(2))
MESH = Mesh(axes={"tp": 2}, coordinates=((0,), (1,)))
WHOLE = torch.randn(SHAPE, generator=torch.Generator().manual_seed(0))
WHOLE[:32] *= 1.7  # so that halves have an amax of their own
ALLOWED = 1e-3 * float(WHOLE.norm())


def kept(
    values: Tensor, block: tuple[int, ...] = ALL, dtype: torch.dtype = torch.float8_e4m3fn
) -> Quantised:
    """Quantised by the amax of each block."""
    block = tuple(min(size, each) for size, each in zip(values.shape, block, strict=True))
    codes, scales = blockwise(values, block, dtype)
    form = QuantisedForm(codes=str(dtype)[len("torch.") :], scales="float32", block=block)
    return Quantised(form, codes, scales)


def under(values: Tensor, scales: Tensor, block: tuple[int, ...] = ALL) -> Quantised:
    """Quantised under scales that are given; it saturates."""
    wide = scales.repeat_interleave(block[0], 0).repeat_interleave(block[1], 1)
    codes = (values / wide).clamp(-448, 448).to(torch.float8_e4m3fn)
    return kept(values, block)._replace(codes=codes, scales=scales)


def examine(
    folder: Path,
    reference: Quantised,
    *parts: Quantised,
    before: Quantised | None = None,
    allowed: float = ALLOWED,
    boxes: Sequence[SampledBox] = tuple(blocks(SHAPE, 1 << 11)),
    mesh: Mesh = MESH,
) -> Diagnosis | None:
    """One part is the whole, two are halves by ranks."""
    layouts = HALVES if len(parts) == 2 else (FULL,)
    expected = write_kept(folder / "reference", {0: (FULL, reference)})
    found = write_kept(folder / "candidate", dict(enumerate(zip(layouts, parts, strict=True))))
    was = None
    with SpanReader(folder / "reference") as ours, SpanReader(folder / "candidate") as theirs:
        if before is not None:  # its bytes lie in the candidate's trace: here, it is the candidate
            was = found
        return CodesReader(ours, theirs).diagnose(
            expected, found, allowed, boxes, before=was, mesh=mesh
        )


RIGHT = kept(WHOLE)
BY_ROWS = kept(WHOLE, ROWS)
ALL_RANKS = (0,)


def factor(value: float, *ranks: int) -> PartFactor:
    near: Any = pytest.approx(value)
    return PartFactor(ranks=ranks or ALL_RANKS, factor=near)


def other_codes() -> Quantised:
    codes = RIGHT.codes.float()
    codes[3] = -codes[3]
    return RIGHT._replace(codes=codes.to(torch.float8_e4m3fn))


WRONG: dict[str, tuple[Quantised, Quantised, Diagnosis]] = {
    "a scale that is twice as large": (
        RIGHT,
        RIGHT._replace(scales=RIGHT.scales * 2),
        Diagnosis(mistake=Mistake.WRONG_SCALE, factors=(factor(2.0),)),
    ),
    "a scale that is inverted": (
        RIGHT,
        RIGHT._replace(scales=1 / RIGHT.scales),
        Diagnosis(mistake=Mistake.WRONG_SCALE, factors=(factor(1 / float(RIGHT.scales) ** 2),)),
    ),
    "scales of rows in another order": (
        BY_ROWS,
        BY_ROWS._replace(scales=BY_ROWS.scales.flip(0)),
        Diagnosis(mistake=Mistake.WRONG_SCALE, factors=(factor(1.0),)),
    ),
    "codes of a row with another sign": (
        RIGHT,
        other_codes(),
        Diagnosis(mistake=Mistake.WRONG_CODES),
    ),
    "a scale of other values": (
        RIGHT,
        under(WHOLE, RIGHT.scales * 3.7),
        Diagnosis(mistake=Mistake.OTHER_SCALE, factors=(factor(3.7),)),
    ),
    "a scale of other values that cuts off": (
        RIGHT,
        under(WHOLE, RIGHT.scales / 2.9),
        Diagnosis(mistake=Mistake.OTHER_SCALE, factors=(factor(1 / 2.9),)),
    ),
    "another format": (
        RIGHT,
        kept(WHOLE, ALL, torch.float8_e5m2),
        Diagnosis(
            mistake=Mistake.OTHER_CODES, dtype="float8_e5m2", reference_dtype="float8_e4m3fn"
        ),
    ),
    "blocks along the other dim": (
        kept(WHOLE, (1, 32)),
        kept(WHOLE, (32, 1)),
        Diagnosis(mistake=Mistake.OTHER_BLOCKS),
    ),
}


@pytest.mark.parametrize(("reference", "candidate", "expected"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_told(
    tmp_path: Path, reference: Quantised, candidate: Quantised, expected: Diagnosis
) -> None:
    found = examine(tmp_path, reference, candidate)
    assert found == expected
    assert found is not None
    assert "{" not in wording.diagnosis(found, MESH)


def test_a_scale_that_is_wrong_on_one_rank_is_told_with_the_rank(tmp_path: Path) -> None:
    halves = [kept(half, ROWS) for half in WHOLE.chunk(2)]
    halves[1] = halves[1]._replace(scales=halves[1].scales / 2)
    found = examine(tmp_path, BY_ROWS, *halves)
    assert found == Diagnosis(mistake=Mistake.WRONG_SCALE, factors=(factor(1.0, 0), factor(0.5, 1)))
    said = wording.diagnosis(found, MESH)
    assert "on average 1 on tp0 (rank 0), 0.5 on tp1 (rank 1)" in said


def test_an_amax_that_is_not_reduced_is_told_with_its_axis(tmp_path: Path) -> None:
    halves = [kept(half) for half in WHOLE.chunk(2)]
    found = examine(tmp_path, RIGHT, *halves)
    one, other = (float(half.scales / RIGHT.scales) for half in halves)
    assert found == Diagnosis(
        mistake=Mistake.SCALE_OF_EACH_PART,
        factors=(factor(one, 0), factor(other, 1)),
        axes=("tp",),
    )


def test_a_scale_that_is_reduced_and_of_other_values_is_no_matter_of_ranks(tmp_path: Path) -> None:
    halves = [under(half, RIGHT.scales * 3.7, (32, 128)) for half in WHOLE.chunk(2)]
    found = examine(tmp_path, RIGHT, *halves)
    assert found == Diagnosis(mistake=Mistake.OTHER_SCALE, factors=(factor(3.7, 0, 1),))


def test_a_scale_of_the_step_before_is_stale(tmp_path: Path) -> None:
    stale = under(WHOLE, RIGHT.scales * 3.7)
    found = examine(tmp_path, RIGHT, stale, before=stale)
    assert found == Diagnosis(mistake=Mistake.STALE_SCALE, factors=(factor(3.7),))


def test_a_few_boxes_tell_it_too(tmp_path: Path) -> None:
    """What is left is then held to their share of what is allowed."""
    boxes = tuple(blocks(SHAPE, 1 << 7))[::16]
    twice = RIGHT._replace(scales=RIGHT.scales * 2)
    found = examine(tmp_path / "twice", RIGHT, twice, boxes=boxes)
    assert found == Diagnosis(mistake=Mistake.WRONG_SCALE, factors=(factor(2.0),))
    mostly = twice._replace(codes=other_codes().codes)
    assert examine(tmp_path / "all", RIGHT, mostly) is None
    assert examine(tmp_path / "few", RIGHT, mostly, boxes=boxes) == found  # row 3 is in none


def test_halves_that_are_right_have_no_diagnosis(tmp_path: Path) -> None:
    halves = [kept(half, ROWS) for half in WHOLE.chunk(2)]
    assert examine(tmp_path, BY_ROWS, *halves) is None


NOTHING: dict[str, Quantised] = {
    "other values": kept(torch.randn(SHAPE, generator=torch.Generator().manual_seed(1))),
    "codes that are not finite": RIGHT._replace(
        codes=torch.full(SHAPE, math.nan).to(torch.float8_e4m3fn)
    ),
    "wrong codes under a wrong scale": other_codes()._replace(scales=RIGHT.scales * 2),
}


@pytest.mark.parametrize("candidate", NOTHING.values(), ids=NOTHING)
def test_what_is_off_otherwise_has_no_diagnosis(tmp_path: Path, candidate: Quantised) -> None:
    found = examine(tmp_path, RIGHT, candidate)
    assert found is None or found.mistake is Mistake.WRONG_CODES
    assert found is None or torch.equal(candidate.scales, RIGHT.scales)


def write_both(folder: Path, candidate: Any) -> tuple[LogicalTensor, LogicalTensor]:
    write = write_kept if isinstance(candidate, Quantised) else write_logical
    return (
        write_kept(folder / "reference", {0: (FULL, RIGHT)}),
        write(folder / "candidate", {0: (FULL, candidate)}),
    )


@pytest.mark.parametrize(
    ("candidate", "mistake"),
    [(RIGHT._replace(scales=RIGHT.scales * 2), Mistake.WRONG_SCALE), (2 * WHOLE, None)],
)
def test_a_suspect_is_told_so_where_both_runs_keep_it(
    tmp_path: Path, candidate: Any, mistake: Mistake | None
) -> None:
    reference, found = write_both(tmp_path, candidate)
    with SpanReader(tmp_path / "reference") as ours, SpanReader(tmp_path / "candidate") as theirs:
        detail = Examiner(ours, theirs).examine(tensor(ID, 0, 10.0), reference, found)
    assert (detail.diagnosis and detail.diagnosis.mistake) == mistake
