"""Training programs in a process group: data parallel on two ranks, sharded and piped on one.

One rank is enough for what shards and schedules do to the tracer, and takes a tenth of the time.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_

import ttrace
from attacks.faults.programs import Attacked, Outcome


def _net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4))


def _batches() -> Tensor:
    return torch.randn(3, 2, 4, 6, generator=torch.Generator().manual_seed(1))


def _local(tensor: Tensor) -> Tensor:
    return (tensor.to_local() if isinstance(tensor, DTensor) else tensor).detach().clone()


def replicated() -> Outcome:
    """DistributedDataParallel: each rank has its own half of a batch."""
    model = DistributedDataParallel(_net())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    tracer = ttrace.attach(model, optimizer)
    done = Outcome([], [model], [optimizer])
    for x in _batches():
        with tracer.step():
            loss = model(x[dist.get_rank()]).square().mean()
            loss.backward()
            done.numbers.append(clip_grad_norm_(model.parameters(), 0.01))
            optimizer.step()
            optimizer.zero_grad()
        done.numbers += [loss.detach(), *map(_local, model.parameters())]
    return done


def sharded() -> Outcome:
    """FSDP2 over tensor parallel layers."""
    model = _net()
    mesh = init_device_mesh("cpu", (1, 1), mesh_dim_names=("dp", "tp"))
    styles = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    parallelize_module(model, mesh["tp"], styles)
    fully_shard(model, mesh=mesh["dp"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    tracer = ttrace.attach(model, optimizer)
    done = Outcome([], [model], [optimizer])
    for x in _batches():
        with tracer.step():
            loss = model(x[0]).square().mean()
            loss.backward()
            done.numbers.append(_local(clip_grad_norm_(model.parameters(), 0.01)))
            optimizer.step()
            optimizer.zero_grad()
        done.numbers += [_local(loss), *map(_local, model.parameters())]
    return done


def piped() -> Outcome:
    """A schedule of torch.distributed.pipelining, which first rehearses."""
    model = _net()
    stage = PipelineStage(model, 0, 1, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, n_microbatches=2, loss_fn=nn.functional.mse_loss)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tracer = ttrace.attach(stage, optimizer)
    done = Outcome([], [model], [optimizer])
    for x in _batches():
        with tracer.step():
            losses: list[Tensor] = []
            schedule.step(x[0], target=torch.ones(4, 4), losses=losses)
            optimizer.step()
            optimizer.zero_grad()
        done.numbers += [*map(_local, losses), *map(_local, model.parameters())]
    return done


GROUPED = (
    Attacked(name="replicated", train=replicated, ranks=2),
    Attacked(name="sharded", train=sharded, ranks=1, settings={"steps": 2}),
    Attacked(name="piped", train=piped, ranks=1),
)
