"""What a process of `python -m benchmarks.megatron` does: one case after the other."""

from __future__ import annotations

import logging
import tempfile
import traceback
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from benchmarks.megatron.cases import Case
    from benchmarks.megatron.flow import Lab

_LABS: list[Lab] = []  # of this process: its ranks live as long as it does


def perform(folder: str, case: Case) -> dict[str, Any]:
    """What was found, or the error that prevented it."""
    from benchmarks.megatron.cases import all_cases

    try:
        if not _LABS:
            _LABS.append(_lab(Path(folder), max(case.ranks for case in all_cases())))
        return _LABS[0].run(case)
    except Exception:  # noqa: BLE001  (other cases must go on)
        for lab in _LABS:
            lab.pool.close()
        _LABS.clear()
        return {"error": traceback.format_exc()}


def _lab(folder: Path, ranks: int) -> Lab:
    import torch

    from benchmarks.megatron.flow import Lab
    from zoo.workers import WorkerPool

    torch.set_num_threads(1)
    torch.backends.mkldnn.set_flags(False)
    return Lab(Path(tempfile.mkdtemp(dir=folder)), WorkerPool(ranks))


def quieten() -> None:
    logging.disable(logging.ERROR)
    warnings.simplefilter("ignore")  # that Transformer Engine and Apex are not installed
