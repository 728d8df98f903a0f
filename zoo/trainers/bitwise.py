"""Whether a traced run trains as an untraced one does, to the last bit.

A script of an example leaves two names behind: `model`, what it trained, and `losses`, one number
for each of its steps. Enters: a run. Leaves: on every rank a digest of both.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
import xxhash
from torch import nn
from torch.distributed.tensor import DTensor

from ttrace.capture.settings import Settings
from ttrace.lab.functions import WorkerPool
from zoo.programs.program import Run
from zoo.programs.rank import execute


def is_unchanged(pool: WorkerPool, run: Run, *, steps: int = 3) -> bool:
    """Whether losses and parameters on all ranks are the same with and without tracing."""
    untraced = pool.run(run.ranks, digest_of, run)
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(folder=Path(folder), steps=steps)
        traced = pool.run(run.ranks, digest_of, run, environment=settings.to_environment())
        was_traced = len(list(Path(folder).glob("rank-*/journal.jsonl"))) == run.ranks
    return was_traced and traced == untraced


def digest_of(run: Run) -> str:
    """What a run leaves on this rank."""
    names = execute(run)
    digest = xxhash.xxh3_128()
    for loss in names["losses"]:
        digest.update(float(loss).hex().encode())
    for name, parameter in names["model"].named_parameters():
        digest.update(name.encode())
        digest.update(_local(parameter).contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _local(parameter: nn.Parameter) -> torch.Tensor:
    """What this rank holds of it."""
    held: Any = getattr(parameter, "ds_tensor", parameter)
    return (held.to_local() if isinstance(held, DTensor) else held).detach().reshape(-1)
