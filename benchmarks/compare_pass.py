"""How fast is the pass over a pair, measured against a pass that only reads the same bytes?

    python benchmarks/compare_pass.py

One thread, CPU time, 64 MB per tensor, candidates interleaved, best of N. The read pass is the
fastest of three: a C loop over both tensors at once, one after the other, and torch's sum.
"""

from __future__ import annotations

import ctypes
import json
import os
import shlex
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from ttrace.core.kernel import CompiledKernel, Kernel, PythonKernel, default_kernel
from ttrace.core.statistics import Accumulator

# Larger than the L2 cache of any core, and the size of one weight of a mid-sized model.
TENSOR_BYTES = 64 * 1024 * 1024
ROUNDS = 15  # measured: the best of 10 to 20 rounds repeats within 5% on a shared machine

READ_SOURCE = """
#include <stdint.h>
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
