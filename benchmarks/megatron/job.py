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
    from zoo.trials import Trials

_OWN: list[Trials] = []  # of this process: its ranks live as long as it does


def perform(folder: str, case: Case) -> dict[str, Any]:
    """What was found, or the error that prevented it."""
    from benchmarks.megatron.cases import all_cases
    from benchmarks.megatron.entries import entry

    try:
        if not _OWN:
            ranks = max(case.candidate.ranks for case in all_cases())
            _OWN.append(_trials(Path(folder), ranks))
        return entry(case, _OWN[0])
    except Exception:  # noqa: BLE001  (other cases must go on)
        for trials in _OWN:
            trials.pool.close()
        _OWN.clear()
        return {"error": traceback.format_exc()}


def _trials(folder: Path, ranks: int) -> Trials:
    import torch

    from zoo.trials import Trials
    from zoo.workers import worker_pool

    torch.set_num_threads(1)
    torch.backends.mkldnn.set_flags(False)
    return Trials(worker_pool(ranks), Path(tempfile.mkdtemp(dir=folder)))


def quieten() -> None:
    logging.disable(logging.ERROR)
    warnings.simplefilter("ignore")  # that Transformer Engine and Apex are not installed
