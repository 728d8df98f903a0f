"""The grain of a tensor that is kept as codes is that of its values, where that may accuse."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.support.logical import write_kept, write_logical
from ttrace.analysis.compare import Comparator
from ttrace.core.layout import Layout
from ttrace.core.quantised import QuantisedForm
from ttrace.trace.quantised import Quantised
from ttrace.trace.spans import SpanReader

SHAPE = (32, 64)
FULL = Layout.full(SHAPE)
WHOLE = torch.randn(SHAPE, generator=torch.Generator().manual_seed(0))
FORM = QuantisedForm(codes="float8_e4m3fn", scales="float8_e8m0fnu", block=(1, 32))
POWERS = torch.full((32, 2), 120, dtype=torch.uint8).view(torch.float8_e8m0fnu)
CODES = Quantised(FORM, (WHOLE / 2.0**-7).to(torch.float8_e4m3fn), POWERS)


@pytest.mark.parametrize(
    ("reference", "candidate", "grains"),
    [
        (CODES, WHOLE, (3, 23)),  # not quantised as the reference is
        (CODES, CODES, (3, 3)),
        (WHOLE, CODES, (None, None)),  # a module that is given codes, which it would have made
        (WHOLE, WHOLE, (23, 23)),
    ],
    ids=["reference", "both", "candidate", "neither"],
)
def test_bits_are_told_but_of_a_candidate_that_alone_is_kept_so(
    tmp_path: Path,
    reference: Quantised | Tensor,
    candidate: Quantised | Tensor,
    grains: tuple[int | None, int | None],
) -> None:
    expected, found = (
        write_kept(tmp_path / name, {0: (FULL, each)})
        if isinstance(each, Quantised)
        else write_logical(tmp_path / name, {0: (FULL, each)})
        for name, each in (("reference", reference), ("candidate", candidate))
    )
    with SpanReader(tmp_path / "reference") as ours, SpanReader(tmp_path / "candidate") as theirs:
        measured = Comparator(ours, theirs).measure(expected, found)
    statistics = measured.statistics
    assert (statistics.reference_grain, statistics.candidate_grain) == grains
