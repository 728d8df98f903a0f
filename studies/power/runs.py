"""Correct runs of the demo in many layouts, each a whole experiment of the tool.

Enters: a grid of models and layouts. Leaves: for every experiment the folder with its traces, and
what the tool says of it. Ranks are gloo processes that stay alive (ttrace.lab.functions); a
reference that several layouts share is run once. `--split N` stands for N ranks of tensor
parallelism simulated in one process (ttrace.capture.rounding).
"""

from __future__ import annotations

import contextlib
import io
import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from unittest import mock

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from ttrace.capture.settings import Settings
from ttrace.demo import train as demo
from ttrace.lab.experiment import Experiment
from ttrace.lab.functions import WorkerPool, run_function
from ttrace.lab.run import Function, TracedRun
from ttrace.trace.store import local_path

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """What is trained."""

    seed: int
    dtype: str
    layers: int
    dim: int
    samples: int = 8
    device: str = "cpu"

    @property
    def name(self) -> str:
        return f"{self.dtype}-{self.layers}x{self.dim}-seed{self.seed}"

    @property
    def arguments(self) -> tuple[str, ...]:
        return (
            *("--seed", str(self.seed), "--dtype", self.dtype),
            *("--layers", str(self.layers), "--dim", str(self.dim), "--samples", str(self.samples)),
            *("--device", self.device),
        )


class SharedReferences:
    """An executor: one rank in this process, more in the pool; every reference is run once."""

    def __init__(self, pool: WorkerPool | None) -> None:
        self._pool = pool
        self._done: dict[tuple[object, ...], Path] = {}

    def __call__(self, run: TracedRun) -> None:
        assert isinstance(run.work, Function)
        how, folder = run.settings, local_path(run.folder)
        key = (run.work, how.noise_seed, how.tap, how.plan is not None)
        if key in self._done:
            folder.parent.mkdir(parents=True, exist_ok=True)
            folder.symlink_to(self._done[key].resolve())
            return
        if run.work.ranks > 1:
            assert self._pool is not None, "only layouts of one process need no pool"
            run_function(run, run.work, self._pool)
            return
        with mock.patch.dict(os.environ, how.to_environment()):
            run.work.train(*run.work.arguments)
        if run.work.train is train_here:
            self._done[key] = folder


def experiment(model: Model, layout: str, folder: Path, execute: SharedReferences) -> Experiment:
    words = list(LAYOUTS[layout])
    parts = int(words.pop(words.index("--split") + 1)) if "--split" in words else 0
    candidate = demo.parse([*model.arguments, *(word for word in words if word != "--split")])
    reference = demo.parse([*model.arguments, "--microbatches", "1"])
    return Experiment(
        reference=Function(train_here, arguments=(reference,)),
        candidate=Function(train_split, arguments=(candidate, parts))
        if parts
        else Function(train_rank, ranks=candidate.world_size, arguments=(candidate,)),
        folder=folder,
        execute=execute,
    )


def train_here(config: demo.TrainConfig) -> None:
    demo.prepare_process(config)
    with contextlib.redirect_stdout(io.StringIO()):
        demo.train(config)


def train_split(config: demo.TrainConfig, parts: int) -> None:
    """One process that rounds as so many ranks of tensor parallelism do."""
    settings = Settings.from_environment(os.environ)
    assert settings is not None
    with mock.patch.dict(os.environ, replace(settings, split=parts).to_environment()):
        train_here(config)


def train_rank(config: demo.TrainConfig) -> None:
    demo.prepare_process(config)
    mesh = init_device_mesh("cpu", (config.dp, config.tp), mesh_dim_names=("dp", "tp"))
    with contextlib.redirect_stdout(io.StringIO()):
        demo.train(config, mesh)
    dist.barrier()
