"""Where the error is: every kernel against a plain computation on the whole tensor."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ttrace.core.door import from_dict, to_dict
from ttrace.core.statistics import Slice, Statistics
from ttrace.measure import accumulator as accumulator_module
from ttrace.measure import kernel as kernel_module
from ttrace.measure.accumulator import Accumulator
from ttrace.measure.kernel import CompiledKernel, Kernel, PythonKernel, load_library
from ttrace.trace.blocks import blocks

LIBRARY = load_library(Path(kernel_module.__file__).with_name("_kernel.so"))
LEVELS = range(CompiledKernel(LIBRARY).best_level + 1) if LIBRARY else ()
KERNELS: dict[str, Kernel] = {"python": PythonKernel()} | {
    f"level{level}": CompiledKernel(LIBRARY, level=level) for level in LEVELS if LIBRARY
}
DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]
# Rows that share a run, that fill several, odd ones, and more rows than a panel has.
SHAPES = [(3, 5), (70, 64), (300, 2), (9, 1024), (5, 1026), (130, 4097), (2, 9001), (1, 7, 1, 6)]


@pytest.fixture(params=KERNELS.values(), ids=list(KERNELS))
def kernel(request: pytest.FixtureRequest) -> Kernel:
    return request.param


def measure(
    reference: torch.Tensor,
    candidate: torch.Tensor,
    kernel: Kernel | None = None,
    budget: int = 1 << 20,
) -> Statistics:
    whole = Accumulator(kernel, shape=reference.shape)
    for start, stop in blocks(reference.shape, budget):
        box = tuple(slice(low, high) for low, high in zip(start, stop, strict=True))
        whole.update(reference[box], candidate[box], start)
    return whole.result()


def noisy_pair(
    shape: Sequence[int], dtype: torch.dtype, seed: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    reference = torch.randn(tuple(shape), generator=generator, dtype=torch.float64).to(dtype)
    factor = 1 + 0.05 * torch.randn(tuple(shape), generator=generator, dtype=torch.float64)
    return reference, (reference.double() * factor).to(dtype)


def oracle(reference: torch.Tensor, candidate: torch.Tensor) -> dict[tuple[int, ...], torch.Tensor]:
    """The norms of all slices, by the dims they fix."""
    error = candidate.double() - reference.double()
    error = torch.where(error.isfinite(), error, 0.0)
    dims = [dim for dim, size in enumerate(error.shape) if size > 1]
    families = [tuple(dims[:-1]), *((dim,) for dim in dims)]
    return {
        family: error.square().sum([d for d in range(error.ndim) if d not in family]).sqrt()
        for family in dict.fromkeys(families)
    }


def assert_matches(found: Statistics, reference: torch.Tensor, candidate: torch.Tensor) -> None:
    expected = oracle(reference, candidate)
    assert {worst.dims for worst in found.slices} == set(expected)
    for worst in found.slices:
        norms = expected[worst.dims]
        assert worst.error_norm == pytest.approx(float(norms.max()), rel=1e-5)
        # Another slice may be as bad to the last place; the one named must be as bad.
        assert float(norms[worst.index]) == pytest.approx(float(norms.max()), rel=1e-5)
    error = (candidate.double() - reference.double()).nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
    assert float(error[found.worst_element].abs()) == found.max_error == float(error.abs().max())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_worst_slices_and_element_are_found(
    kernel: Kernel, shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    pair = noisy_pair(shape, dtype)
    assert_matches(measure(*pair, kernel), *pair)


@pytest.mark.parametrize("budget", [7, 40, 256, 5_000])
@pytest.mark.parametrize("shape", [(3, 4, 64), (2, 3, 5, 8), (6, 50), (4, 300)], ids=str)
def test_blocks_do_not_change_what_is_found(
    kernel: Kernel, shape: tuple[int, ...], budget: int
) -> None:
    """The smallest budgets cut rows: a row is then told in several parts."""
    pair = noisy_pair(shape, torch.float32)
    found, whole = measure(*pair, kernel, budget), measure(*pair, kernel)
    assert_matches(found, *pair)
    assert [worst.index for worst in found.slices] == [worst.index for worst in whole.slices]
    assert found.worst_element == whole.worst_element


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_shape_in_any_blocks(data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=4))
    budget = data.draw(st.integers(1, 200))
    pair = noisy_pair(shape, torch.bfloat16, seed=data.draw(st.integers(0, 99)))
    for kernel in KERNELS.values():
        found = measure(*pair, kernel, budget)
        if sum(size > 1 for size in shape) > 1 and found.error_norm > 0:
            assert_matches(found, *pair)
        else:
            assert found.slices == ()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_one_wrong_row_is_named(kernel: Kernel, dtype: torch.dtype) -> None:
    reference, candidate = noisy_pair((4, 32, 128), dtype)
    candidate[2, 17] = 0
    candidate[1, 3, 40] = 100
    found = measure(reference, candidate, kernel)
    by_dims = {worst.dims: worst.index for worst in found.slices}
    assert found.worst_element == (1, 3, 40)
    candidate[1, 3, 40] = reference[1, 3, 40]
    by_dims = {worst.dims: worst.index for worst in measure(reference, candidate, kernel).slices}
    assert by_dims[0, 1] == (2, 17)
    assert (by_dims[(0,)], by_dims[(1,)]) == ((2,), (17,))


def test_nonfinite_elements_are_left_out_of_slices(kernel: Kernel) -> None:
    reference, candidate = noisy_pair((70, 130), torch.float32)
    candidate[3, 4], candidate[66, 129], reference[5, 0] = math.nan, math.inf, math.nan
    assert_matches(measure(reference, candidate, kernel), reference, candidate)


def test_squares_that_overflow_are_left_to_doubles(kernel: Kernel) -> None:
    reference, candidate = noisy_pair((70, 130), torch.float32)
    pair = reference * 1e30, candidate * 1e30
    assert_matches(measure(*pair, kernel), *pair)


def test_vectors_and_scalars_have_no_slices_but_elements(kernel: Kernel) -> None:
    for shape in ((40,), (1, 40, 1), ()):
        reference, candidate = noisy_pair(shape, torch.float32)
        found = measure(reference, candidate, kernel)
        error = (candidate.double() - reference.double()).abs()
        assert found.slices == ()
        assert float(error[found.worst_element]) == found.max_error


def test_equal_tensors_have_no_worst_place(kernel: Kernel) -> None:
    reference, _ = noisy_pair((4, 5), torch.float32)
    found = measure(reference, reference.clone(), kernel)
    assert (found.slices, found.worst_element) == ((), ())


def test_a_dim_too_long_for_memory_is_not_sliced(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accumulator_module, "_LONGEST", 40)
    reference, candidate = noisy_pair((3, 50, 8), torch.float32)
    found = measure(reference, candidate, kernel)
    assert [worst.dims for worst in found.slices] == [(0, 1), (0,), (2,)]
    reference, candidate = noisy_pair((50, 60), torch.float32)
    assert [worst.dims for worst in measure(reference, candidate, kernel).slices] == [(0,)]


def test_pieces_without_a_shape_have_no_places(kernel: Kernel) -> None:
    accumulator = Accumulator(kernel)
    accumulator.update(torch.zeros(4, 4), torch.ones(4, 4))
    assert (accumulator.result().slices, accumulator.result().worst_element) == ((), ())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("steps", [1, 3, 100])
def test_ulp_distance_counts_representable_numbers(
    kernel: Kernel, dtype: torch.dtype, steps: int
) -> None:
    reference = torch.full((3, 4), 1.0, dtype=dtype)
    candidate = reference.clone()
    whole = {2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]
    candidate.view(whole)[1, 2] += steps
    found = measure(reference, candidate, kernel)
    assert (found.max_ulp, found.unequal) == (steps, 1)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_ulp_distance_across_zero(kernel: Kernel, dtype: torch.dtype) -> None:
    smallest = torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps
    reference, candidate = torch.full((2, 2), smallest, dtype=dtype), torch.zeros(2, 2, dtype=dtype)
    candidate[0, 0] = -smallest
    assert measure(reference, candidate, kernel).max_ulp == 2


def test_ulp_of_the_extremes_does_not_overflow(kernel: Kernel) -> None:
    largest = torch.finfo(torch.float32).max
    pair = torch.tensor([largest]), torch.tensor([-largest])
    assert measure(*pair, kernel).max_ulp == 2 * 0x7F7FFFFF


def test_json_keeps_places() -> None:
    found = measure(*noisy_pair((3, 4, 5), torch.float32))
    back = from_dict(Statistics, json.loads(json.dumps(to_dict(found))))
    assert back == found
    assert isinstance(back.slices[0], Slice)
