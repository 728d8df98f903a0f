"""A vocabulary-parallel output with the cross-entropy of Megatron-Core and smoothed labels."""

import os

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.tensor_parallel import vocab_parallel_cross_entropy
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

import ttrace

dist.init_process_group("gloo")
world = int(os.environ["WORLD_SIZE"])
parallel_state.initialize_model_parallel(tensor_model_parallel_size=world)
mesh = init_device_mesh("cpu", (world,))

torch.manual_seed(1)
model = nn.Sequential(nn.Embedding(24, 16), nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 24))
parallelize_module(model, mesh, {"3": ColwiseParallel(use_local_output=False)})
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
tracer = ttrace.attach(model, optimizer)

tokens, labels = torch.randint(0, 24, (6, 5)), torch.randint(0, 24, (6, 5))
with torch.compiler.set_stance("force_eager"), tracer.step():
    logits = model(tokens).to_local().clone()
    loss = vocab_parallel_cross_entropy(logits, labels, label_smoothing=0.1).mean()
    loss.backward()
    optimizer.step()

dist.destroy_process_group()
