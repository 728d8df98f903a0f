"""Distillation with a vocabulary-parallel output: the teacher's probabilities are the target."""

import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, loss_parallel, parallelize_module

import ttrace

dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (int(os.environ["WORLD_SIZE"]),))

torch.manual_seed(1)
model = nn.Sequential(nn.Embedding(24, 16), nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 24))
parallelize_module(model, mesh, {"3": ColwiseParallel(use_local_output=False)})
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
tracer = ttrace.attach(model, optimizer)

tokens = torch.randint(0, 24, (6, 5))
teacher = torch.randn(6, 5, 24).softmax(-1)
with tracer.step(), loss_parallel():
    log_p = F.log_softmax(model(tokens), dim=-1)
    loss = -(distribute_tensor(teacher, mesh, [Shard(2)]) * log_p).sum() / tokens.numel()
    loss.backward()
    optimizer.step()

dist.destroy_process_group()
