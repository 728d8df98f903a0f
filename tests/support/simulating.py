"""Training functions in several layouts, which simulated ranks and gloo processes both run."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import ttrace
from ttrace.core.record import Record
from ttrace.demo.model import ModelConfig, build_model
from ttrace.demo.parallel import DataParallel, parallelize
from ttrace.demo.train import TrainConfig, prepare_process
from ttrace.trace.reader import Trace

_BATCH, _LENGTH = 8, 12
_MODEL = ModelConfig(n_layers=2, dim=32, hidden_dim=48)


def train_mesh(dp: int, tp: int, data_parallel: DataParallel, tied: bool = False) -> None:
    """Two steps of the demo's model on a mesh."""
    prepare_process(TrainConfig())
    model: nn.Module = build_model(_MODEL, seed=3)
    tokens = torch.randint(256, (_BATCH, _LENGTH), generator=torch.Generator().manual_seed(5))
    mesh = init_device_mesh("cpu", (dp, tp), mesh_dim_names=("dp", "tp"))
    model = parallelize(model, mesh, data_parallel=data_parallel)  # type: ignore[arg-type]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    tracer = ttrace.attach(model, optimizer)
    mine = tokens.chunk(dp)[mesh.get_local_rank("dp")]
    for _ in range(2):
        with tracer.step():
            logits = model(mine)
            F.cross_entropy(logits[:, :-1].flatten(0, 1), mine[:, 1:].flatten()).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()


def train_random() -> None:
    """DDP with dropout: every rank draws its own numbers, between collectives."""
    torch.manual_seed(100 + dist.get_rank())
    model = nn.Sequential(nn.Linear(9, 33), nn.Dropout(0.3), nn.GELU(), nn.Linear(33, 5))
    wrapped = DistributedDataParallel(model)  # which broadcasts the parameters of rank 0
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
    tracer = ttrace.attach(wrapped, optimizer)
    with tracer.step():
        for _ in range(2):
            wrapped(torch.randn(4, 9)).square().mean().backward()
            dist.barrier()
        optimizer.step()


def train_pipeline() -> None:
    """Two layers on every rank, four microbatches."""
    torch.manual_seed(0)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    layers = [nn.Sequential(nn.Linear(8, 8), nn.GELU()) for _ in range(2 * ranks)]
    inputs, targets = torch.randn(8, 8), torch.randn(8, 8)
    held = nn.Sequential(*layers[2 * rank : 2 * rank + 2])
    stage = PipelineStage(held, rank, ranks, torch.device("cpu"))
    optimizer = torch.optim.SGD(held.parameters(), lr=0.1)
    tracer = ttrace.attach(stage, optimizer)
    schedule = Schedule1F1B(stage, 4, loss_fn=F.mse_loss)
    arguments: Any = (inputs,) if rank == 0 else ()
    wanted: Any = {"target": targets} if rank == ranks - 1 else {}
    with tracer.step():
        schedule.step(*arguments, **wanted)
        optimizer.step()


def contents(trace: Trace) -> dict[tuple[int, str, int], object]:
    """The checksum of the bytes of everything that each rank recorded, by rank, id and order."""
    found: dict[tuple[int, str, int], object] = {}
    for rank, recorded in trace.ranks.items():
        counts: dict[str, int] = {}
        for record in recorded.records:
            name = str(record.id)
            counts[name] = counts.get(name, 0) + 1
            found[rank, name, counts[name]] = _content(record)
    return found


def _content(record: Record) -> object:
    checksum = None if record.location is None else record.location.xxh3
    return checksum, record.shape, record.dtype
