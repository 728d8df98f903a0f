"""The same contract for the compiled kernel, at each instruction set, and the Python one."""

from __future__ import annotations

import ctypes
import json
import math
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ttrace.core.door import from_dict, to_dict
from ttrace.core.formats import format_of
from ttrace.core.statistics import Statistics
from ttrace.errors import UsageError
from ttrace.measure import kernel as kernel_module
from ttrace.measure.accumulator import Accumulator
from ttrace.measure.kernel import (
    CompiledKernel,
    Kernel,
    PythonKernel,
    Sums,
    compiled_library,
    default_kernel,
    load_library,
)
from ttrace.trace.dtypes import dtype_name

LIBRARY = load_library(Path(kernel_module.__file__).with_name("_kernel.so"))
LEVELS = range(CompiledKernel(LIBRARY).best_level + 1) if LIBRARY else ()
COMPILED = {f"level{level}": CompiledKernel(LIBRARY, level=level) for level in LEVELS if LIBRARY}
KERNELS: dict[str, Kernel] = {"python": PythonKernel(), **COMPILED}

NARROW = [torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2]
WHOLE = [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16]
BLOCK = 4096  # the longest of kernel.c: splits at its multiples leave the float sums as they are


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(params=KERNELS.values(), ids=list(KERNELS))
def kernel(request: pytest.FixtureRequest) -> Kernel:
    return request.param


def measure(reference: torch.Tensor, candidate: torch.Tensor, kernel: Kernel) -> Statistics:
    accumulator = Accumulator(kernel)
    accumulator.update(reference, candidate)
    return accumulator.result()


def oracle(reference: torch.Tensor, candidate: torch.Tensor) -> Statistics:
    r = reference.double().flatten().numpy()
    c = candidate.double().flatten().numpy()
    both = np.isfinite(r) & np.isfinite(c)
    same = (r == c) | (np.isnan(r) & np.isnan(c))
    fr, fc = r[both].astype(np.longdouble), c[both].astype(np.longdouble)
    e = fc - fr
    return Statistics(
        count=r.size,
        error_norm=float(np.sqrt((e * e).sum())),
        reference_norm=float(np.sqrt((fr * fr).sum())),
        candidate_norm=float(np.sqrt((fc * fc).sum())),
        dot=float((fr * fc).sum()),
        max_error=float(np.abs(e).max()) if e.size else 0.0,
        error_sum=float(e.sum()),
        nonfinite_reference=int((~np.isfinite(r) & (r != c)).sum()),
        nonfinite_candidate=int((~np.isfinite(c) & (r != c)).sum()),
        unequal=int((~same).sum()),
        reference_grain=grain_of(reference, both),
        candidate_grain=grain_of(candidate, both),
    )


def grain_of(values: torch.Tensor, both: np.ndarray) -> int:
    """The most bits of mantissa that one of these elements needs."""
    narrow = values.dtype == torch.float32 or values.dtype.itemsize <= 2
    word, width = ("<u4", 23) if narrow else ("<u8", 52)
    flat = values.flatten().float() if narrow else values.flatten().double()
    found = [int(bits) & ((1 << width) - 1) for bits in set(flat.numpy().view(word)[both].tolist())]
    return max((width - (m & -m).bit_length() + 1 for m in found if m), default=0)


def assert_close(found: Statistics, expected: Statistics, rel: float = 1e-6) -> None:
    """Sums that may cancel are held to the scale of what was summed."""
    counts = ("count", "nonfinite_reference", "nonfinite_candidate", "unequal")
    for name in (*counts, "reference_grain", "candidate_grain"):
        assert getattr(found, name) == getattr(expected, name), name
    for name in ("error_norm", "reference_norm", "max_error"):
        assert getattr(found, name) == pytest.approx(getattr(expected, name), rel=rel, abs=0), name
    # Its square is summed as that of reference plus error: of opposite signs, those cancel.
    scale = (expected.reference_norm + expected.error_norm) ** 2
    assert found.candidate_norm**2 == pytest.approx(
        expected.candidate_norm**2, rel=2 * rel, abs=2 * rel * scale
    )
    scale = expected.reference_norm * max(expected.reference_norm, expected.candidate_norm)
    assert found.dot == pytest.approx(expected.dot, rel=rel, abs=rel * scale)
    scale = expected.error_norm * math.sqrt(expected.count)
    assert found.error_sum == pytest.approx(expected.error_sum, rel=rel, abs=2 * rel * scale)


def noisy_pair(
    count: int, dtype: torch.dtype, *, scale: float = 1.0, noise: float = 0.01, seed: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    reference = (torch.randn(count, generator=generator, dtype=torch.float64) * scale).to(dtype)
    factor = 1 + noise * torch.randn(count, generator=generator, dtype=torch.float64)
    return reference, (reference.double() * factor).to(dtype)


@pytest.mark.parametrize("dtype", NARROW, ids=str)
@pytest.mark.parametrize("count", [1, 2, 31, BLOCK - 1, BLOCK, BLOCK + 1, 100_003])
def test_matches_the_oracle_at_every_length(kernel: Kernel, dtype: torch.dtype, count: int) -> None:
    pair = noisy_pair(count, dtype)
    assert_close(measure(*pair, kernel), oracle(*pair))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("scale", [1e-38, 1e-30, 1e-20, 1e-10, 1e10, 1e19, 1e30, 3e37])
@pytest.mark.parametrize("noise", [1e-7, 0.02, 1.0])
def test_squares_that_overflow_or_underflow_float32_are_summed(
    kernel: Kernel, dtype: torch.dtype, scale: float, noise: float
) -> None:
    pair = noisy_pair(10_000, dtype, scale=scale, noise=noise)
    assert_close(measure(*pair, kernel), oracle(*pair))


def test_differences_that_overflow_float32_are_summed(kernel: Kernel) -> None:
    pair = torch.tensor([3e38, 1.0, -3e38]), torch.tensor([-3e38, 1.0, 3e38])
    assert_close(measure(*pair, kernel), oracle(*pair))


def test_a_candidate_smaller_than_the_error_is_measured_on_the_scale_of_both(
    kernel: Kernel,
) -> None:
    pair = torch.tensor([-3.367878204063744e16]), torch.tensor([8564048824107008.0])
    assert_close(measure(*pair, kernel), oracle(*pair))


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_matches_the_oracle_on_arbitrary_floats(data: st.DataObject) -> None:
    width: Literal[16, 32] = data.draw(st.sampled_from([16, 32]))
    size = data.draw(st.integers(0, 40))
    floats = st.lists(st.floats(width=width), min_size=size, max_size=size)
    dtype = data.draw(st.sampled_from([torch.float32, torch.bfloat16, torch.float16]))
    reference = torch.tensor(data.draw(floats), dtype=dtype)
    candidate = torch.tensor(data.draw(floats), dtype=dtype)
    copied = torch.tensor(data.draw(st.lists(st.booleans(), min_size=size, max_size=size))).bool()
    candidate = torch.where(copied, reference, candidate)
    for kernel in KERNELS.values():
        assert_close(measure(reference, candidate, kernel), oracle(reference, candidate))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_nonfinite_elements_are_counted_and_left_out(kernel: Kernel, dtype: torch.dtype) -> None:
    reference, candidate = noisy_pair(3 * BLOCK, dtype)
    reference[10:20] = math.nan
    candidate[15:30] = math.nan
    reference[BLOCK + 1], candidate[BLOCK + 1] = math.inf, math.inf
    reference[BLOCK + 2], candidate[BLOCK + 2] = math.inf, -math.inf
    reference[BLOCK + 3], candidate[BLOCK + 3] = math.inf, math.nan
    found = measure(reference, candidate, kernel)
    assert (found.nonfinite_reference, found.nonfinite_candidate) == (12, 17)  # not the equal one
    assert_close(found, oracle(reference, candidate))
    keep = reference.isfinite() & candidate.isfinite()
    clean = measure(reference[keep], candidate[keep], kernel)
    assert found.error_norm == pytest.approx(clean.error_norm, rel=1e-6)
    assert found.reference_norm == pytest.approx(clean.reference_norm, rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("special", [math.nan, math.inf, -math.inf])
def test_a_single_nonfinite_element_is_found_wherever_it_sits(
    kernel: Kernel, dtype: torch.dtype, special: float
) -> None:
    places = [0, 1, 15, 16, 31, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 2 * BLOCK + 2]
    for place in places:
        reference = torch.ones(2 * BLOCK + 3, dtype=dtype)
        candidate = reference.clone()
        candidate[place] = special
        found = measure(reference, candidate, kernel)
        assert (found.nonfinite_candidate, found.unequal) == (1, 1)
        assert (found.nonfinite_reference, found.error_norm) == (0, 0.0)
        assert found.reference_norm == pytest.approx(math.sqrt(2 * BLOCK + 2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_equal_tensors_are_equal_even_with_nan(kernel: Kernel, dtype: torch.dtype) -> None:
    reference, _ = noisy_pair(10_001, dtype)
    reference[[5, 5_000, 10_000]] = torch.tensor([math.nan, math.inf, math.nan], dtype=dtype)
    found = measure(reference, reference.clone(), kernel)
    assert found.equal
    assert (found.nonfinite_reference, found.nonfinite_candidate) == (2, 2)
    assert (found.error_norm, found.max_error, found.error_sum) == (0.0, 0.0, 0.0)
    assert found.reference_norm == found.candidate_norm
    assert found.gain == pytest.approx(1.0, rel=1e-12)


def test_one_changed_element_is_not_equal(kernel: Kernel) -> None:
    reference, _ = noisy_pair(10_001, torch.bfloat16)
    candidate = reference.clone()
    candidate[10_000] += 1
    found = measure(reference, candidate, kernel)
    assert not found.equal
    assert_close(found, oracle(reference, candidate))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_signed_zeros_are_equal(kernel: Kernel, dtype: torch.dtype) -> None:
    reference = torch.zeros(5_000, dtype=dtype)
    found = measure(reference, -reference, kernel)
    assert found == replace(oracle(reference, reference), max_ulp=0)
    assert found.equal


def test_smallest_subnormal_is_not_zero(kernel: Kernel) -> None:
    reference, candidate = torch.zeros(100), torch.zeros(100)
    candidate[7] = 1e-45
    found = measure(reference, candidate, kernel)
    assert found.unequal == 1
    assert found.error_norm == pytest.approx(2.0**-149)
    assert found.relative_error == math.inf


def test_nothing_measured_and_empty_pieces_give_zeros(kernel: Kernel) -> None:
    empty = Accumulator(kernel).result()
    assert measure(torch.empty(0, 7), torch.empty(0, 7), kernel) == empty
    assert (empty.count, empty.relative_error, empty.equal) == (0, 0.0, True)
    assert math.isnan(empty.gain)


def test_scalar_tensors(kernel: Kernel) -> None:
    found = measure(torch.tensor(2.0), torch.tensor(2.5), kernel)
    assert (found.count, found.error_norm, found.error_sum) == (1, 0.5, 0.5)
    assert (found.relative_error, found.gain) == (0.25, 1.25)


@pytest.mark.parametrize("dtype", WHOLE, ids=str)
def test_whole_numbers_and_booleans(kernel: Kernel, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(1)
    first, second = (
        torch.randint(0, 120, (9_001,), generator=generator).to(dtype) for _ in range(2)
    )
    assert_close(measure(first, second, kernel), oracle(first, second))


def test_whole_numbers_beyond_float64_still_differ(kernel: Kernel) -> None:
    reference = torch.tensor([2**53, 2**62 + 1, 5])
    candidate = torch.tensor([2**53 + 1, 2**62, 5])
    assert measure(reference, candidate, kernel).unequal == 2


@pytest.mark.parametrize("reference", [*NARROW, torch.float64, torch.int64], ids=str)
@pytest.mark.parametrize("candidate", [*NARROW, torch.float64, torch.int64], ids=str)
def test_mixed_dtypes_compare_values(
    kernel: Kernel, reference: torch.dtype, candidate: torch.dtype
) -> None:
    values = torch.randint(-16, 17, (40_001,), generator=torch.Generator().manual_seed(2))
    other = torch.where(torch.arange(40_001) % 3 == 0, values + 1, values)
    pair = values.to(reference), other.to(candidate)
    assert_close(measure(*pair, kernel), oracle(*pair))


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128], ids=str)
def test_complex_numbers_count_as_two_reals(kernel: Kernel, dtype: torch.dtype) -> None:
    reference = torch.tensor([1 + 2j, 3j], dtype=dtype)
    found = measure(reference, reference.conj(), kernel)
    assert (found.count, found.unequal, found.max_error) == (4, 2, 6.0)
    against_real = measure(torch.tensor([1.0, 0.0]), reference, kernel)
    assert (against_real.count, against_real.unequal) == (4, 2)


def test_views_are_read_as_they_appear(kernel: Kernel) -> None:
    reference = torch.randn(64, 96, generator=torch.Generator().manual_seed(3))
    candidate = reference + 0.1 * torch.rand(64, 96, generator=torch.Generator().manual_seed(4))
    for view in (
        lambda t: t.t(),
        lambda t: t[:, 1::3],
        lambda t: t[1:, 5:],
        lambda t: t[0].expand(7, 96),
        lambda t: torch.view_as_complex(t.view(64, 48, 2)).conj().imag,
        lambda t: t.bfloat16().flatten()[1:],
        lambda t: t.clone().requires_grad_(),
    ):
        pair = view(reference), view(candidate)
        assert_close(measure(*pair, kernel), oracle(*(side.detach().clone() for side in pair)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_splitting_at_blocks_does_not_change_the_result(kernel: Kernel, dtype: torch.dtype) -> None:
    reference, candidate = noisy_pair(64 * BLOCK + 77, dtype)
    whole = measure(reference, candidate, kernel)
    choose = random.Random(4)
    for _ in range(5):
        cuts = sorted(choose.sample(range(1, 64), 6))
        pieces = Accumulator(kernel)
        for start, stop in zip([0, *cuts], [*cuts, 65], strict=True):
            piece = slice(start * BLOCK, stop * BLOCK)
            pieces.update(reference[piece], candidate[piece])
        assert_close(pieces.result(), whole, rel=1e-12)


def test_splitting_anywhere_changes_only_float32_rounding(kernel: Kernel) -> None:
    reference, candidate = noisy_pair(100_000, torch.bfloat16)
    pieces = Accumulator(kernel)
    for start in range(0, 100_000, 1_009):
        piece = slice(start, start + 1_009)
        pieces.update(reference[piece], candidate[piece])
    assert_close(pieces.result(), measure(reference, candidate, kernel))


def test_thirty_million_elements_keep_their_digits(kernel: Kernel) -> None:
    """Where a float32 norm is 0.7% wrong."""
    reference, candidate = noisy_pair(1_000_000, torch.bfloat16)
    found = Accumulator(kernel)
    for _ in range(30):
        found.update(reference, candidate)
    once = oracle(reference, candidate)
    result = found.result()
    assert result.count == 30_000_000
    assert result.unequal == 30 * once.unequal
    assert result.error_norm == pytest.approx(math.sqrt(30) * once.error_norm, rel=1e-7)
    assert result.reference_norm == pytest.approx(math.sqrt(30) * once.reference_norm, rel=5e-7)
    assert result.gain == pytest.approx(once.gain, abs=1e-9)


def test_a_float32_norm_would_not_keep_them() -> None:
    """The companion of the test above: the trap it guards against is real."""
    ones = torch.full((2**24 + 1_000,), 1.0)
    naive = np.cumsum(ones.numpy(), dtype=np.float32)[-1]
    assert naive == 2**24
    assert measure(ones, ones, default_kernel()).reference_norm ** 2 == pytest.approx(ones.numel())


def test_a_wrong_factor_shows_in_the_gain(kernel: Kernel) -> None:
    reference, candidate = noisy_pair(65_536, torch.bfloat16, noise=0.025)
    assert measure(reference, candidate, kernel).gain == pytest.approx(1.0, abs=5e-4)
    scaled = (candidate.float() * 1.01).bfloat16()
    assert measure(reference, scaled, kernel).gain == pytest.approx(1.01, abs=5e-4)


def test_the_gain_of_float32_is_finer_than_float32_sums(kernel: Kernel) -> None:
    """Its noise is 1e-9 at this size; sums of squares in float32 err by 1e-7."""
    reference, candidate = noisy_pair(200_000, torch.float32, noise=4e-7)
    error = candidate.double() - reference.double()
    shift = (torch.dot(error, reference.double()) / reference.double().square().sum()).item()
    assert measure(reference, candidate, kernel).gain - 1 == pytest.approx(shift, abs=1e-13)


def test_a_constant_error_is_the_worst_case_of_float32_sums(kernel: Kernel) -> None:
    for value in (0.1, 0.3, 1e-3, 7.7):
        pair = torch.zeros(8 * BLOCK), torch.full((8 * BLOCK,), value)
        assert_close(measure(*pair, kernel), oracle(*pair), rel=2e-6)


def mantissa_bits(dtype: torch.dtype) -> int:
    found = format_of(dtype_name(dtype))
    assert found is not None
    return found.mantissa_bits


COARSE = [torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2]


@pytest.mark.parametrize("coarse", COARSE, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_the_grain_of_what_was_rounded_is_that_of_the_lower_dtype(
    kernel: Kernel, coarse: torch.dtype, dtype: torch.dtype
) -> None:
    reference, _ = noisy_pair(10_000, dtype)
    found = measure(reference, reference.to(coarse).to(dtype), kernel)
    assert found.reference_grain == mantissa_bits(dtype)
    assert found.candidate_grain == min(mantissa_bits(coarse), mantissa_bits(dtype))


def test_a_scale_that_is_a_power_of_two_leaves_the_grain(kernel: Kernel) -> None:
    reference, _ = noisy_pair(10_000, torch.float32)
    rounded = reference.to(torch.float8_e4m3fn).float()
    assert measure(reference, rounded * 2.0**-40, kernel).candidate_grain == 3
    assert measure(reference, rounded * 0.3, kernel).candidate_grain == 23


def test_one_fine_element_among_many_shows_in_the_grain(kernel: Kernel) -> None:
    rounded = noisy_pair(100_003, torch.float32)[0].bfloat16().float()
    for place in (0, BLOCK, 100_002):
        other = rounded.clone()
        other[place] = 1 + 2.0**-23
        found = measure(rounded, other, kernel)
        assert (found.reference_grain, found.candidate_grain) == (7, 23)


def test_what_is_left_out_has_no_grain(kernel: Kernel) -> None:
    reference = torch.tensor([1.0, 1 + 2.0**-23, 2.0])
    candidate = torch.tensor([1.0, math.inf, 2.0])
    found = measure(reference, candidate, kernel)
    assert (found.reference_grain, found.candidate_grain) == (0, 0)


def test_zero_reference_has_no_relative_error(kernel: Kernel) -> None:
    zeros, ones = torch.zeros(9_000), torch.ones(9_000)
    assert measure(zeros, zeros, kernel).relative_error == 0.0
    assert measure(zeros, ones, kernel).relative_error == math.inf
    assert math.isnan(measure(zeros, ones, kernel).gain)
    assert measure(ones, zeros, kernel).relative_error == pytest.approx(1.0)
    assert measure(ones, zeros, kernel).candidate_norm == 0.0


def test_json_round_trip() -> None:
    found = measure(torch.tensor([1.0, 2.0]), torch.tensor([1.5, math.nan]), default_kernel())
    assert from_dict(Statistics, json.loads(json.dumps(to_dict(found)))) == found


def test_shapes_must_agree() -> None:
    with pytest.raises(UsageError, match=r"\[2, 3\].*\[6\]"):
        Accumulator().update(torch.zeros(2, 3), torch.zeros(6))


def test_other_devices_are_refused() -> None:
    with pytest.raises(UsageError, match="meta"):
        Accumulator().update(torch.zeros(2), torch.zeros(2, device="meta"))


@pytest.fixture
def fresh_default(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setattr(kernel_module, "default_kernel", default_kernel.__wrapped__)
    monkeypatch.setattr(kernel_module, "compiled_library", compiled_library.__wrapped__)
    return monkeypatch


@pytest.mark.skipif(LIBRARY is None, reason="the kernel was not built")
def test_the_environment_chooses_the_python_kernel(fresh_default: pytest.MonkeyPatch) -> None:
    fresh_default.delenv("TTRACE_KERNEL", raising=False)
    assert isinstance(kernel_module.default_kernel(), CompiledKernel)
    fresh_default.setenv("TTRACE_KERNEL", "python")
    assert isinstance(kernel_module.default_kernel(), PythonKernel)


def test_an_unknown_kernel_is_refused(fresh_default: pytest.MonkeyPatch) -> None:
    fresh_default.setenv("TTRACE_KERNEL", "fortran")
    with pytest.raises(UsageError, match="fortran"):
        kernel_module.default_kernel()


def test_a_missing_library_is_no_error(tmp_path: Path) -> None:
    assert load_library(tmp_path / "_kernel.so") is None


def test_a_broken_library_is_named_in_a_warning(tmp_path: Path) -> None:
    path = tmp_path / "_kernel.so"
    path.write_bytes(b"not a library")
    with pytest.warns(RuntimeWarning, match=str(path)):
        assert load_library(path) is None


@pytest.mark.skipif(LIBRARY is None, reason="the kernel was not built")
def test_a_library_of_another_abi_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_module, "_ABI", -1)
    with pytest.warns(RuntimeWarning, match="not -1"):
        assert load_library(Path(kernel_module.__file__).with_name("_kernel.so")) is None


@pytest.mark.skipif(LIBRARY is None, reason="the kernel was not built")
def test_the_compiled_kernel_reads_nothing_past_the_end() -> None:
    """A NaN directly behind the last element must not be seen."""
    for count in range(1, 70):
        buffer = torch.ones(count + 1, dtype=torch.bfloat16)
        buffer[count] = math.nan
        for kernel in COMPILED.values():
            found = measure(buffer[:count], buffer[:count].clone(), kernel)
            assert (found.nonfinite_reference, found.dot) == (0, float(count))


def test_the_struct_has_no_padding() -> None:
    assert ctypes.sizeof(Sums) == 14 * 8
