"""Fingerprints of values so large that float32 cannot hold the sums of a cell: masks, mostly."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from ttrace.analysis.compare.sketched import SketchPair
from ttrace.core.statistics import Statistics
from ttrace.measure.cells import choose_cells
from ttrace.measure.fingerprint import Fingerprint, fingerprint_of
from ttrace.trace.sketches import Sketch

SHAPE = (64, 128)
DTYPES = [torch.float32, torch.bfloat16]


def mask(dtype: torch.dtype = torch.float32) -> Tensor:
    """As a causal model without a special kernel has it."""
    return torch.full(SHAPE, torch.finfo(dtype).min, dtype=dtype).triu(1)


def compared(reference: Tensor, candidate: Tensor) -> Statistics:
    cells = choose_cells(SHAPE, reference.itemsize, runs=None, kept_dims=(), fewest=64)
    assert math.prod(cells.sizes) > 4

    def sketch(values: Tensor) -> Sketch:
        stored = fingerprint_of(values, cells).to_bytes()
        found = Fingerprint.from_bytes(stored, cells.sums_shape(SHAPE), has_exponents=False)
        squares = found.squares if math.isfinite(found.squares) else None
        return Sketch(sums=found.sums, total=None, squares=squares, peak=found.peak, prints=[found])

    return SketchPair(sketch(reference), sketch(candidate), SHAPE, cells.sizes).statistics()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [0, 32])
def test_finite_numbers_are_not_called_infinite(dtype: torch.dtype, rows: int) -> None:
    """Also where sums overflow in one of both runs alone."""
    other = mask(dtype)
    other[rows:] = 0.0
    for found in (compared(mask(dtype), other), compared(other, mask(dtype))):
        assert (found.nonfinite_reference, found.nonfinite_candidate) == (0, 0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_same_mask_passes(dtype: torch.dtype) -> None:
    assert compared(mask(dtype), mask(dtype)).equal


def test_its_norm_is_known() -> None:
    found = compared(mask(), mask())
    assert found.reference_norm == pytest.approx(float(mask().double().norm()), rel=1e-4)


@pytest.mark.parametrize("masked", [slice(None), slice(5, 6)], ids=["a row", "one element"])
def test_another_mask_differs(masked: slice) -> None:
    other = mask()
    other[0, masked] = 0.0
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


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_nan_in_a_mask_is_told(dtype: torch.dtype) -> None:
    spoilt = mask(dtype)
    spoilt[60, 2] = math.nan  # where no sum is too large
    assert compared(mask(dtype), spoilt).nonfinite_candidate == 1
