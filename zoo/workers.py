"""The pool of gloo workers that our own tests use: it lives as long as the test session."""

import torch

from ttrace.lab.functions import WorkerPool as Pool


class WorkerPool(Pool):
    def __init__(self, size: int) -> None:
        super().__init__(size, _no_amx)


def _no_amx() -> None:
    """oneDNN may use AMX where it is not allowed."""
    torch.backends.mkldnn.set_flags(False)
