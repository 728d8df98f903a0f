"""The pool of gloo workers for tests and benchmarks."""

from __future__ import annotations

import torch

from ttrace.lab.functions import WorkerPool


def worker_pool(size: int, *, fresh: bool = False) -> WorkerPool:
    return WorkerPool(size, _no_amx, fresh=fresh)


def _no_amx() -> None:
    """oneDNN may use AMX where it is not allowed."""
    torch.backends.mkldnn.set_flags(False)
