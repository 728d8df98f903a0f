"""Running the demo's training step in a layout with tracing on, for tests of the whole flow."""

from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from ttrace.analysis.check import check
from ttrace.capture.settings import Settings
from ttrace.core.results import CheckResult
from ttrace.demo.train import TrainConfig, prepare_process, train
from ttrace.lab.functions import WorkerPool
from ttrace.report import view, wording


def trace_here(
    config: TrainConfig, folder: Path, monkeypatch: pytest.MonkeyPatch, **how: Any
) -> Path:
    """The traced run of one process, in this one; `how` are settings of the capture."""
    with monkeypatch.context() as patch:
        for name, value in environment(config, folder, **how).items():
            patch.setenv(name, value)
        train(config)
    return folder


def trace_in_pool(config: TrainConfig, folder: Path, pool: WorkerPool, **how: Any) -> Path:
    """The traced run of several ranks; `how` are settings of the capture."""
    variables = environment(config, folder, **how)
    pool.run(config.world_size, train_rank, config, environment=variables)
    return folder


def train_rank(config: TrainConfig) -> None:
    prepare_process(config)
    train(config, init_device_mesh("cpu", (config.dp, config.tp), mesh_dim_names=("dp", "tp")))
    dist.barrier()


def environment(config: TrainConfig, folder: Path, **how: Any) -> dict[str, str]:
    return Settings(folder=folder, steps=config.steps, **how).to_environment()


def explain(result: CheckResult) -> str:
    """What a failing test should say."""
    first = [
        f"{r.id} {r.verdict} {r.ratio} {wording.finding(r)}"
        for r in (*result.failures, *result.undecided)
    ]
    named = [f"{cause.place}: {cause.reason}" for cause in view.root_causes(result)]
    return "\n".join([*named, *first[:5]])


__all__ = ["TrainConfig", "check", "explain", "trace_here", "trace_in_pool"]
