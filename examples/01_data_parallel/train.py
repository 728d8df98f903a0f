"""One training step, on one device or data parallel, traced by TTrace in three lines.

    python examples/01_data_parallel/train.py                                       reference
    torchrun --standalone --nproc-per-node 2 examples/01_data_parallel/train.py     candidate

`--wrong-average` plants a mistake: ranks average over the global batch and DDP averages again.
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn

import ttrace  # 1

parser = argparse.ArgumentParser()
parser.add_argument("--wrong-average", action="store_true")
wrong_average = parser.parse_args().wrong_average

rank, world_size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
torch.manual_seed(0)
model: nn.Module = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 10))
images, labels = torch.randn(16, 32), torch.randint(10, (16,))
images, labels = images.chunk(world_size)[rank], labels.chunk(world_size)[rank]
if world_size > 1:
    dist.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

tracer = ttrace.attach(model, optimizer)  # 2, after the model was wrapped
with tracer.step():  # 3
    loss = nn.functional.cross_entropy(model(images), labels, reduction="sum")
    loss = loss / (16 if wrong_average else len(labels))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()

if world_size > 1:
    dist.destroy_process_group()
