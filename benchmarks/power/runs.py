"""Correct runs of the demo in many layouts, each a whole experiment of the tool.

Enters: a grid of models and layouts. Leaves: for every experiment the folder with its traces, and
what the tool says of it. Ranks are gloo processes that stay alive (tests/worker_pool.py); a
reference that several layouts share is run once. `--split N` stands for N ranks of tensor
parallelism simulated in one process (ttrace.capture.rounding).
"""

from __future__ import annotations

import contextlib
import io
import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from unittest import mock

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from ttrace.capture.attach import ENV_SPLIT
from ttrace.demo import train as demo
from ttrace.lab.experiment import Experiment
from ttrace.lab.launch import TracedRun

# Real process groups of 2 and 4 ranks, and simulated tensor parallelism.
LAYOUTS: Mapping[str, tuple[str, ...]] = {
    "ddp2": ("--dp", "2", "--data-parallel", "ddp", "--microbatches", "2"),
    "fsdp2": ("--dp", "2", "--microbatches", "4"),
    "tp2": ("--tp", "2", "--microbatches", "1", "--no-sequence-parallel"),
    "tp2-sp": ("--tp", "2", "--microbatches", "2"),
    "fsdp2-tp2-sp": ("--dp", "2", "--tp", "2", "--microbatches", "2"),
    "split2": ("--microbatches", "1", "--split", "2"),
    "split4": ("--microbatches", "1", "--split", "4"),
    "split8": ("--microbatches", "1", "--split", "8"),
}


def prepare() -> None:
    """A process that makes runs."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.backends.mkldnn.set_flags(False)


class Pool(Protocol):
    def run(
        self,
        world_size: int,
        function: Any,
        *args: Any,
        environment: dict[str, str] | None = None,
    ) -> list[Any]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """What is trained."""

    seed: int
    dtype: str
    layers: int
    dim: int
    device: str = "cpu"

    @property
    def name(self) -> str:
        return f"{self.dtype}-{self.layers}x{self.dim}-seed{self.seed}"

    @property
    def arguments(self) -> tuple[str, ...]:
        return (
            *("--seed", str(self.seed), "--dtype", self.dtype),
            *("--layers", str(self.layers), "--dim", str(self.dim), "--device", self.device),
        )


class PooledRunner:
    """Runs what an experiment asks for in this process or in the pool, and shares references."""

    def __init__(self, pool: Pool | None) -> None:
        self._pool = pool
        self._done: dict[tuple[object, ...], Path] = {}

    def __call__(self, run: TracedRun) -> None:
        words = [str(word) for word in run.command]
        split = int(words.pop(words.index("--split") + 1)) if "--split" in words else 0
        words = [word for word in words if word != "--split"]
        config = demo.parse(words)
        is_reference = config.world_size == 1 and not split
        key = (*words, run.noise, run.taps, run.plans is not None)
        if is_reference and key in self._done:
            run.folder.parent.mkdir(parents=True, exist_ok=True)
            run.folder.symlink_to(self._done[key].resolve())
            return
        environment = run.variables | ({ENV_SPLIT: str(split)} if split else {})
        if config.world_size > 1:
            assert self._pool is not None, "only layouts of one process need no pool"
            self._pool.run(config.world_size, train_rank, config, environment=environment)
        else:
            with mock.patch.dict(os.environ, environment):
                train_here(config)
        if is_reference:
            self._done[key] = run.folder


def experiment(model: Model, layout: str, folder: Path) -> Experiment:
    return Experiment(
        reference=[*model.arguments, "--microbatches", "1"],
        candidate=[*model.arguments, *LAYOUTS[layout]],
        folder=folder,
    )


def train_here(config: demo.TrainConfig) -> None:
    demo.prepare_process(config)
    with contextlib.redirect_stdout(io.StringIO()):
        demo.train(config)


def train_rank(config: demo.TrainConfig) -> None:
    demo.prepare_process(config)
    mesh = init_device_mesh("cpu", (config.dp, config.tp), mesh_dim_names=("dp", "tp"))
    with contextlib.redirect_stdout(io.StringIO()):
        demo.train(config, mesh)
    dist.barrier()
