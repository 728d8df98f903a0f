"""Fingerprints of values so large that float32 cannot hold the sums of a cell: masks, mostly."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from ttrace.analysis.compare.sketch_pair import SketchPair
from ttrace.core.statistics import Statistics
from ttrace.measure.cells import choose_cells
from ttrace.measure.fingerprint import Fingerprint, fingerprint_of
from ttrace.trace.sketches import Sketch

LOWEST = torch.finfo(torch.float32).min
SHAPE = (64, 128)


def mask() -> Tensor:
    """As a causal model without a special kernel has it."""
    return torch.full(SHAPE, LOWEST).triu(1)


def compared(reference: Tensor, candidate: Tensor) -> Statistics:
    cells = choose_cells(SHAPE, 4, runs=None, kept_dims=(), fewest=64)
    assert math.prod(cells.sizes) > 4

    def sketch(values: Tensor) -> Sketch:
        stored = fingerprint_of(values, cells).to_bytes()
        found = Fingerprint.from_bytes(stored, cells.sums_shape(SHAPE), has_exponents=False)
        return Sketch(sums=found.sums, total=found.total, squares=found.squares, peak=found.peak)

    return SketchPair(sketch(reference), sketch(candidate), SHAPE, cells.sizes).statistics()


def test_finite_numbers_are_not_called_infinite() -> None:
    found = compared(mask(), mask())
    assert (found.nonfinite_reference, found.nonfinite_candidate) == (0, 0)
    assert found.equal
    assert found.reference_norm == pytest.approx(float(mask().double().norm()), rel=1e-4)


def test_another_mask_differs() -> None:
    other = mask()
    other[0] = 0.0
    found = compared(mask(), other)
    assert not found.equal
    assert found.error_norm == pytest.approx(float((mask() - other).double().norm()), rel=1e-2)


@pytest.mark.parametrize("bad", [-math.inf, math.nan])
def test_what_is_not_finite_is_told(bad: float) -> None:
    plain = torch.randn(SHAPE, generator=torch.Generator().manual_seed(1))
    spoilt = plain.clone()
    spoilt[3, 5] = bad
    assert compared(plain, spoilt).nonfinite_candidate == 1
    assert compared(spoilt, plain).nonfinite_reference == 1
    assert compared(spoilt, spoilt).nonfinite_candidate == 0
