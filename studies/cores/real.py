"""Real runs of many gloo ranks on one machine: correct ones stay silent, planted bugs are placed.

The demo's transformer under FSDP2 and sequence-parallel tensor parallelism against one rank, with
bugs of its catalogue: `ttrace.diff` as people call it, which makes the isolated runs, too, after a
failure. A model this small is all communication, so seconds are of a machine with a core a rank.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from importlib import import_module
from io import StringIO
from pathlib import Path

import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

import ttrace
from ttrace.core.results import CheckResult, Outcome
from ttrace.demo.bugs import find_bug
from ttrace.demo.train import TrainConfig, prepare_process
from ttrace.demo.train import train as train_demo
from ttrace.report.overall import headline

_MICROBATCHES = 2
_TP = 2  # as many key-value heads as the demo's model has


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A layout, and what is wrong in it."""

    dp: int
    bug: str | None = None

    @property
    def ranks(self) -> int:
        return self.dp * _TP

    @property
    def name(self) -> str:
        return f"dp {self.dp} x tp {_TP}, {self.bug or 'correct'}"


SMALL = (Case(dp=2), Case(dp=2, bug="rope-positions"))
CASES = (
    Case(dp=8),
    *(Case(dp=8, bug=bug) for bug in ("column-input-grad", "norm-grad-unsynced", "dp-scale")),
    Case(dp=16),
    *(Case(dp=16, bug=bug) for bug in ("rope-positions", "row-bias", "local-clip-norm")),
)


def train(dp: int, samples: int, bug: str | None) -> None:
    config = TrainConfig(
        dp=dp,
        tp=_TP if dist.get_world_size() > 1 else 1,
        samples=samples,
        microbatches=_MICROBATCHES,
        bug=bug,
    )
    prepare_process(config)
    mesh = None
    if dist.get_world_size() > 1:
        mesh = init_device_mesh("cpu", (config.dp, config.tp), mesh_dim_names=("dp", "tp"))
    with redirect_stdout(StringIO()):  # it writes its loss
        train_demo(config, mesh)


def real(cases: Sequence[Case] = CASES) -> str:
    """The table; a wrong answer ends the benchmark after all cases."""
    import_module("torch._dynamo")  # every rank would import it by itself otherwise
    lines = ["| ranks | layout and bug | answer | seconds |", "|---|---|---|---|"]
    wrong = []
    for case in cases:
        begun = time.perf_counter()
        result = compared(case)
        seconds = time.perf_counter() - begun
        answer = headline(result).partition(" (")
        said = answer[0] + answer[2].partition(")")[2]
        lines.append(f"| {case.ranks} | {case.name} | {said} | {seconds:.0f} |")
        print(lines[-1], flush=True)
        wrong += [] if is_right(case, result) else [case.name]
    if wrong:
        raise SystemExit(f"not as expected: {'; '.join(wrong)}")
    return "\n".join(lines)


def compared(case: Case) -> CheckResult:
    samples = case.dp * _MICROBATCHES
    with tempfile.TemporaryDirectory(prefix="real-") as folder:
        return ttrace.diff(
            ttrace.Function(train, 1, (1, samples, None)),
            ttrace.Function(train, case.ranks, (case.dp, samples, case.bug)),
            out=Path(folder) / "traces",
        )


def is_right(case: Case, result: CheckResult) -> bool:
    """Silent where nothing is wrong; else what the catalogue says, and nothing else."""
    if case.bug is None:
        return result.outcome is Outcome.EQUIVALENT and not result.failures
    blames = [culprit.blame for culprit in result.culprits]
    return result.outcome is Outcome.NOT_EQUIVALENT and blames == [find_bug(case.bug).blame]
