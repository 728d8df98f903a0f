"""Fingerprints: the compiled pass and numpy's make the same, and bytes hold them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.support.sketching import exact_sums
from ttrace.measure import fingerprint
from ttrace.measure.cells import Cells
from ttrace.measure.fingerprint import Fingerprint, fingerprint_bytes, fingerprint_of
from ttrace.measure.kernel import compiled_library

SHAPES = [
    ((37, 5, 300), Cells((4, 1, 64), (3, 0, 7))),
    ((7, 33), Cells((1, 16), (0, 5))),
    ((33,), Cells((8,), (1,))),
    ((5, 3, 4), Cells((1, 2, 1), (0, 1, 0))),
    ((3, 2048), Cells((1, 2048), (0, 0))),
    ((0, 4), Cells((1, 4), (0, 0))),
]
DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2]


def made(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(dtype)


@pytest.fixture(params=["compiled", "numpy"], autouse=True)
def _either(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "numpy":
        monkeypatch.setattr(fingerprint, "compiled_library", lambda: None)
    else:
        assert compiled_library() is not None


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("shape", "cells"), SHAPES, ids=str)
def test_sums_are_those_of_the_definition(
    shape: tuple[int, ...], cells: Cells, dtype: torch.dtype
) -> None:
    tensor = made(shape, dtype)
    found, wide = fingerprint_of(tensor, cells), tensor.double()
    assert found.sums == pytest.approx(exact_sums(wide.numpy(), cells), abs=2e-5)
    assert found.squares == pytest.approx(float(wide.square().sum()), rel=1e-5)
    assert found.total == pytest.approx(float(wide.sum()), abs=1e-2)
    assert found.peak == pytest.approx(float(wide.abs().max()) if tensor.numel() else 0.0)


@pytest.mark.parametrize(("shape", "cells"), SHAPES, ids=str)
def test_bytes_hold_all_of_it(shape: tuple[int, ...], cells: Cells) -> None:
    found = fingerprint_of(made(shape, torch.float32), cells, with_exponents=True)
    data = found.to_bytes()
    assert len(data) == fingerprint_bytes(shape, cells, has_exponents=True)
    again = Fingerprint.from_bytes(data, cells.sums_shape(shape), has_exponents=True)
    assert again.sums == pytest.approx(found.sums, rel=1e-6, abs=1e-6)
    assert again.digest == found.digest
    assert found.exponents is not None
    assert again.exponents is not None
    assert np.array_equal(again.exponents, found.exponents)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_one_unit_in_the_last_place_of_any_element_is_another_digest(dtype: torch.dtype) -> None:
    cells, tensor = Cells((4, 16), (0, 0)), made((6, 40), dtype)
    own = fingerprint_of(tensor, cells).digest
    words = tensor.view(torch.int16 if dtype.itemsize == 2 else torch.int32)
    for place in range(0, tensor.numel(), 7):
        words.view(-1)[place] += 1
        assert fingerprint_of(tensor, cells).digest != own
        words.view(-1)[place] -= 1
    assert fingerprint_of(tensor, cells).digest == own


def test_two_elements_that_change_places_are_another_digest() -> None:
    cells, tensor = Cells((1, 16), (0, 0)), made((6, 40), torch.float32)
    own = fingerprint_of(tensor, cells).digest
    exchanged = tensor.clone()
    exchanged[0, 3], exchanged[5, 17] = tensor[5, 17], tensor[0, 3]
    assert fingerprint_of(exchanged, cells).digest != own


def test_exponents_count_magnitudes() -> None:
    tensor = torch.tensor([[0.0, 1.0, -1.5, 2.0**-20, 3e38]])
    counts = fingerprint_of(tensor, Cells((1, 8), (0, 0)), with_exponents=True).exponents
    assert counts is not None
    assert counts.sum() == 5
    assert [counts[k] for k in (0, 127 // 4, (127 - 20) // 4, 254 // 4)] == [1, 2, 1, 1]


def test_a_number_that_is_none_spoils_its_cell_alone() -> None:
    tensor = made((4, 64), torch.float32)
    tensor[1, 20] = float("nan")
    tensor[3, 40] = float("inf")
    sums = fingerprint_of(tensor, Cells((1, 16), (0, 0))).sums
    spoilt = {(int(row), int(cell)) for row, cell, _ in np.argwhere(~np.isfinite(sums))}
    assert spoilt == {(1, 1), (3, 2)}


def test_what_is_not_contiguous_is_read_in_its_own_order() -> None:
    tensor, cells = made((16, 40), torch.float32), Cells((1, 8), (0, 0))
    assert np.array_equal(
        fingerprint_of(tensor.t(), cells).sums, fingerprint_of(tensor.t().contiguous(), cells).sums
    )
