"""How fast is the pass over a pair, measured against a pass that only reads the same bytes?

    python benchmarks/compare_pass.py

One thread, CPU time, 64 MB per tensor, candidates interleaved, best of N. The read pass is the
fastest of three: a C loop over both tensors at once, one after the other, and torch's sum.

What the finer statistics cost is told by passes that make nothing but the two norms, over the same
blocks of 2^20 elements that a comparison reads: `plain` is what a compiler makes of two lines of C,
`norm` is as fast as we could write it, and reads ahead.
"""

from __future__ import annotations

import ctypes
import functools
import json
import os
import shlex
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from ttrace.measure.accumulator import Accumulator
from ttrace.measure.kernel import CompiledKernel, Kernel, PythonKernel, default_kernel
from ttrace.trace.blocks import BLOCK_ELEMENTS

# Larger than the L2 cache of any core, and the size of one weight of a mid-sized model.
TENSOR_BYTES = 64 * 1024 * 1024
ROUNDS = 15  # measured: the best of 10 to 20 rounds repeats within 5% on a shared machine

# Feature dims: heads, hidden sizes, MLPs, a vocabulary.
COLUMNS = (64, 128, 512, 1024, 4096, 16384, 131072)

# Of rounding, after a few layers, in units of the values.
NOISE = {torch.bfloat16: 4e-3, torch.float32: 1e-6}

READ_SOURCE = """
#include <stdint.h>
#include <string.h>
typedef float floats __attribute__((vector_size(64)));
typedef uint32_t words __attribute__((vector_size(64)));
static inline floats next(const char *data) {
    floats loaded;
    __builtin_prefetch(data + 8192, 0, 2);
    memcpy(&loaded, data, sizeof loaded);
    return loaded;
}
static inline double sum(floats a, floats b) {
    double sum = 0;
    for (int i = 0; i < 16; i++) sum += a[i] + b[i];
    return sum;
}
void norm_bf16(const char *r, const char *c, int64_t bytes, double *out) {
    for (const char *end = r + bytes; r < end;) {
        floats ee1 = {0}, ee2 = {0}, rr1 = {0}, rr2 = {0};
        for (int i = 0; i < 128; i++, r += 64, c += 64) {
            words x = (words)next(r), y = (words)next(c);
            floats r1 = (floats)(x << 16), r2 = (floats)(x & 0xffff0000u);
            floats e1 = (floats)(y << 16) - r1, e2 = (floats)(y & 0xffff0000u) - r2;
            ee1 += e1 * e1; ee2 += e2 * e2; rr1 += r1 * r1; rr2 += r2 * r2;
        }
        out[0] += sum(ee1, ee2); out[1] += sum(rr1, rr2);
    }
}
void norm_fp32(const char *r, const char *c, int64_t bytes, double *out) {
    for (const char *end = r + bytes; r < end;) {
        floats ee1 = {0}, ee2 = {0}, rr1 = {0}, rr2 = {0};
        for (int i = 0; i < 128; i++, r += 128, c += 128) {
            floats r1 = next(r), r2 = next(r + 64), e1 = next(c) - r1, e2 = next(c + 64) - r2;
            ee1 += e1 * e1; ee2 += e2 * e2; rr1 += r1 * r1; rr2 += r2 * r2;
        }
        out[0] += sum(ee1, ee2); out[1] += sum(rr1, rr2);
    }
}
static inline float wide(uint32_t bits) { float f; memcpy(&f, &bits, 4); return f; }
void plain_bf16(const char *left, const char *right, int64_t bytes, double *out) {
    const uint32_t *r = (const uint32_t *)left, *c = (const uint32_t *)right;
    for (int64_t start = 0; start < bytes / 4; start += 2048) {
        float ee1 = 0, rr1 = 0, ee2 = 0, rr2 = 0;
        _Pragma("omp simd reduction(+ : ee1, rr1, ee2, rr2)")
        for (int64_t i = start; i < start + 2048; i++) {
            float r1 = wide(r[i] << 16), r2 = wide(r[i] & 0xffff0000u);
            float e1 = wide(c[i] << 16) - r1, e2 = wide(c[i] & 0xffff0000u) - r2;
            ee1 += e1 * e1; ee2 += e2 * e2; rr1 += r1 * r1; rr2 += r2 * r2;
        }
        out[0] += ee1 + ee2; out[1] += rr1 + rr2;
    }
}
void plain_fp32(const char *left, const char *right, int64_t bytes, double *out) {
    const float *r = (const float *)left, *c = (const float *)right;
    for (int64_t start = 0; start < bytes / 4; start += 4096) {
        float ee = 0, rr = 0;
        _Pragma("omp simd reduction(+ : ee, rr)")
        for (int64_t i = start; i < start + 4096; i++) {
            float e = c[i] - r[i];
            ee += e * e; rr += r[i] * r[i];
        }
        out[0] += ee; out[1] += rr;
    }
}
uint64_t read_both(const uint64_t *a, const uint64_t *b, int64_t words) {
    uint64_t x = 0, y = 0;
    _Pragma("omp simd reduction(^ : x, y)")
    for (int64_t i = 0; i < words; i++) { x ^= a[i]; y ^= b[i]; }
    return x ^ y;
}
uint64_t read_one(const uint64_t *a, int64_t words) {
    uint64_t x = 0;
    _Pragma("omp simd reduction(^ : x)")
    for (int64_t i = 0; i < words; i++) x ^= a[i];
    return x;
}
"""


def run(*, tensor_bytes: int = TENSOR_BYTES, rounds: int = ROUNDS) -> dict[str, object]:
    """CPU seconds and ratios to the read pass (1 would be as fast as reading alone)."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        seconds = _measure(_passes(tensor_bytes), rounds)
        fused_vs_norm = {
            name: _fused_vs_norm(dtype, tensor_bytes, rounds)
            for name, dtype in (("bf16", torch.bfloat16), ("fp32", torch.float32))
        }
    finally:
        torch.set_num_threads(threads)
    reading = min(value for name, value in seconds.items() if name.startswith("read"))
    return {
        "tensor_bytes": tensor_bytes,
        "rounds": rounds,
        "read_gb_per_s": round(2 * tensor_bytes / reading / 1e9, 2),
        "ratio": {
            name: round(reading / value, 3)
            for name, value in seconds.items()
            if not name.startswith("read")
        },
        "fused_vs_norm_only": fused_vs_norm,
        "cpu_seconds": {name: round(value, 5) for name, value in seconds.items()},
    }


def _passes(tensor_bytes: int) -> dict[str, Callable[[], object]]:
    torch.manual_seed(0)
    half, whole = tensor_bytes // 2, tensor_bytes // 4
    r16 = torch.randn(half).bfloat16()
    c16 = (r16.float() * (1 + 0.01 * torch.randn(half))).bfloat16()
    r32 = torch.randn(whole)
    c32 = r32 * (1 + 1e-6 * torch.randn(whole))
    same = r16.clone()
    passes = _read_passes(r16, c16)
    compiled = default_kernel()
    if isinstance(compiled, CompiledKernel):
        passes["kernel_bf16"] = lambda: _compare(compiled, r16, c16)
        passes["kernel_fp32"] = lambda: _compare(compiled, r32, c32)
        passes["kernel_bf16_equal"] = lambda: _compare(compiled, r16, same)
    passes["fallback_bf16"] = lambda: _compare(PythonKernel(), r16, c16)
    return passes


def _fused_vs_norm(
    dtype: torch.dtype, tensor_bytes: int, rounds: int
) -> dict[str, dict[str, float]]:
    """All statistics with their places, by columns, in units of a pass for the norms alone."""
    torch.manual_seed(0)
    shape = (tensor_bytes // dtype.itemsize // BLOCK_ELEMENTS, BLOCK_ELEMENTS)
    reference = torch.randn(shape).to(dtype)
    candidate = (reference.float() + NOISE[dtype] * torch.randn(shape)).to(dtype)
    library, sums = _read_library(), torch.zeros(2, dtype=torch.float64)
    name = "bf16" if dtype == torch.bfloat16 else "fp32"
    size = BLOCK_ELEMENTS * dtype.itemsize

    def norm_only(kind: str) -> None:
        norms = getattr(library, f"{kind}_{name}")
        for r, c in zip(reference, candidate, strict=True):
            norms(r.data_ptr(), c.data_ptr(), size, sums.data_ptr())

    def fused(columns: int) -> None:
        high = BLOCK_ELEMENTS // columns
        whole = Accumulator(shape=(shape[0] * high, columns))
        for number, (r, c) in enumerate(zip(reference, candidate, strict=True)):
            whole.update(r.view(high, columns), c.view(high, columns), (number * high, 0))
        whole.result()

    passes: dict[str, Callable[[], object]] = {
        kind: functools.partial(norm_only, kind) for kind in ("plain", "norm")
    }
    passes |= {str(columns): functools.partial(fused, columns) for columns in COLUMNS}
    seconds = _measure(passes, rounds)
    return {
        kind: {str(columns): round(seconds[str(columns)] / seconds[kind], 2) for columns in COLUMNS}
        for kind in ("plain", "norm")
    }


def _compare(kernel: Kernel, reference: torch.Tensor, candidate: torch.Tensor) -> object:
    accumulator = Accumulator(kernel)
    accumulator.update(reference, candidate)
    return accumulator.result()


def _read_passes(a: torch.Tensor, b: torch.Tensor) -> dict[str, Callable[[], object]]:
    words = a.numel() * a.element_size() // 8
    library = _read_library()
    return {
        "read_both": lambda: library.read_both(a.data_ptr(), b.data_ptr(), words),
        "read_each": lambda: (
            library.read_one(a.data_ptr(), words),
            library.read_one(b.data_ptr(), words),
        ),
        "read_torch": lambda: (a.view(torch.int64).sum(), b.view(torch.int64).sum()),
    }


def _read_library() -> ctypes.CDLL:
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "read.c"), Path(folder, "read.so")
        source.write_text(READ_SOURCE)
        command = shlex.split(os.environ.get("CC", "cc"))
        flags = ["-O3", "-march=native", "-fopenmp-simd", "-fPIC", "-shared"]
        subprocess.run([*command, *flags, "-o", str(target), str(source)], check=True)
        library = ctypes.CDLL(str(target))
    pointer, words = ctypes.c_void_p, ctypes.c_int64
    library.read_both.argtypes, library.read_both.restype = (
        [pointer, pointer, words],
        ctypes.c_uint64,
    )
    library.read_one.argtypes, library.read_one.restype = [pointer, words], ctypes.c_uint64
    for name in ("plain_bf16", "plain_fp32", "norm_bf16", "norm_fp32"):
        function = getattr(library, name)
        function.argtypes, function.restype = [pointer, pointer, words, pointer], None
    return library


def _measure(passes: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    best = dict.fromkeys(passes, float("inf"))
    for _ in range(rounds):
        for name, work in passes.items():
            start = time.process_time()
            work()
            best[name] = min(best[name], time.process_time() - start)
    return best


if __name__ == "__main__":
    print(json.dumps(run(), indent=2))
