"""Layouts of 64 simulated ranks, what is wrong in each, and where it must be found.

A small transformer on a mesh of data-parallel and tensor-parallel ranks makes one step:

left out          one data-parallel rank brings zeros to the reduction of gradients
wrong slice       one tensor-parallel rank holds the slice of its neighbour
skipped update    one data-parallel rank drops its gradients before the update, so it makes none
"""

import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import ttrace
from ttrace.core.blame import Phase
from ttrace.core.results import CheckResult, Outcome
from ttrace.demo.model import ModelConfig, Transformer, build_model
from ttrace.demo.parallel import shard_over, tensor_parallel
from ttrace.demo.train import TrainConfig, prepare_process

SAMPLES, LENGTH = 64, 16  # chosen: one sample for each of 64 data-parallel ranks
MODEL = ModelConfig(n_layers=2, n_heads=4, n_kv_heads=4)  # chosen: heads for four ranks
WRONG_RANK = 37  # chosen: any of 64 but the first; of fewer ranks what is left of it
WRONG_MODULE = "layers.1.feed_forward.w1"
_KIB = 1 if sys.platform == "darwin" else 1024  # macOS counts bytes


class Bug(StrEnum):
    """What is wrong on one rank."""

    LEFT_OUT = "left out"
    WRONG_SLICE = "wrong slice"
    SKIPPED_UPDATE = "skipped update"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A layout and what is wrong in it; `module` and `phase` are where it must be placed."""

    dp: int
    tp: int
    bug: Bug | None = None
    module: str | None = None
    phase: Phase | None = None

    @property
    def name(self) -> str:
        return f"dp {self.dp} x tp {self.tp}, {self.bug or 'correct'}"


CASES = (
    Case(dp=64, tp=1),
    Case(dp=64, tp=1, bug=Bug.LEFT_OUT, phase=Phase.MAIN_GRADIENT),
    Case(dp=64, tp=1, bug=Bug.SKIPPED_UPDATE, phase=Phase.UPDATE),
    Case(dp=16, tp=4),
    Case(dp=16, tp=4, bug=Bug.WRONG_SLICE, module=WRONG_MODULE),
)


@dataclass(frozen=True, slots=True)
class Measured:
    """A result, and what it took."""

    case: Case
    result: CheckResult
    seconds: float
    peak_bytes: int  # of the largest process: ranks, or the comparison


def measure(case: Case) -> Measured:
    """By the plain comparison, which names the first difference."""
    with _folder() as folder:
        began = time.perf_counter()
        result = ttrace.diff(
            ttrace.Function(train, 1),
            ttrace.Function(train, case.dp * case.tp, (case.dp, case.tp, case.bug), simulated=True),
            out=folder,
            isolate=False,
        )
        seconds = time.perf_counter() - began
    users = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    peak = max(resource.getrusage(user).ru_maxrss for user in users) * _KIB
    return Measured(case, result, seconds, peak)


def is_right(measured: Measured) -> bool:
    """Silent where nothing is wrong; else found, and placed where it is."""
    case, result = measured.case, measured.result
    if case.bug is None:
        return result.outcome is Outcome.EQUIVALENT and not result.failures
    blames = [culprit.blame for culprit in result.culprits]
    return result.outcome is Outcome.NOT_EQUIVALENT and any(
        (case.module is None or case.module in blame.modules)
        and (case.phase is None or case.phase is blame.phase)
        for blame in blames
    )


@contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="ttrace-simulated-") as made:
        yield Path(made) / "traces"


def train(dp: int = 1, tp: int = 1, bug: str | None = None) -> None:
    prepare_process(TrainConfig())
    whole = build_model(MODEL, seed=1)
    tokens = torch.randint(
        MODEL.vocab_size, (SAMPLES, LENGTH), generator=torch.Generator().manual_seed(2)
    )
    mesh = init_device_mesh("cpu", (dp, tp), mesh_dim_names=("dp", "tp"))
    is_wrong = dist.get_rank() == WRONG_RANK % (dp * tp)
    model = _spread(whole, mesh, bug=bug if is_wrong else None)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    tracer = ttrace.attach(model, optimizer)
    mine = tokens.chunk(dp)[mesh.get_local_rank("dp")]
    with tracer.step():
        logits = model(mine)
        F.cross_entropy(logits[:, :-1].flatten(0, 1), mine[:, 1:].flatten()).backward()
        if is_wrong and bug == Bug.SKIPPED_UPDATE:
            optimizer.zero_grad()
        optimizer.step()


def _spread(model: Transformer, mesh: DeviceMesh, *, bug: str | None) -> nn.Module:
    dp, tp = mesh["dp"], mesh["tp"]
    if tp.size() > 1:
        slices = model.get_parameter(f"{WRONG_MODULE}.weight").detach().clone().chunk(tp.size())
        tensor_parallel(model, tp, sequence_parallel=False)
        if bug == Bug.WRONG_SLICE:
            weight: Tensor = model.get_parameter(f"{WRONG_MODULE}.weight")
            assert isinstance(weight, DTensor)
            with torch.no_grad():
                weight.to_local().copy_(slices[(tp.get_local_rank() + 1) % tp.size()])
        return shard_over(model, dp)
    if dp.size() == 1:
        return model
    replicated = DistributedDataParallel(model, process_group=dp.get_group())
    replicated.register_comm_hook(bug, _reduce)
    return replicated


def _reduce(
    bug: str | None,
    bucket: dist.GradBucket,  # type: ignore[name-defined]
) -> torch.futures.Future[Tensor]:
    gradients = bucket.buffer().div_(dist.get_world_size())
    if bug == Bug.LEFT_OUT:
        gradients.zero_()
    work = dist.all_reduce(gradients, async_op=True)
    assert work is not None
    return work.get_future().then(lambda done: done.value()[0])
