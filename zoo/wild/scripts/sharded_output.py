"""What scripts with a tensor-parallel MLP share, whose output stays sharded over the batch."""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

import ttrace


def start():
    """A mesh of all ranks; what is random next is the model."""
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    return init_device_mesh("cpu", (dist.get_world_size(),))


def trace_split(model, mesh, up, down):
    """An optimizer and a tracer of the model, of which these two layers are split."""
    row = RowwiseParallel(output_layouts=Shard(0), use_local_output=False)
    parallelize_module(model, mesh, {up: ColwiseParallel(), down: row})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return optimizer, ttrace.attach(model, optimizer)
