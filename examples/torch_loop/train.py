"""A loop of one's own, on one device or sharded by DDP, FSDP2, FSDP1 or ZeroRedundancyOptimizer.

$ python train.py
$ torchrun --nproc-per-node 2 train.py --shard fsdp2
"""

import argparse
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

import ttrace

STEPS, BATCH, LENGTH, WORDS, WIDTH = 3, 8, 16, 64, 32


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(WIDTH), nn.MultiheadAttention(WIDTH, 4)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        y = self.norm(x).transpose(0, 1)
        x = x + self.attention(y, y, y, need_weights=False)[0].transpose(0, 1)
        return x + self.down(F.gelu(self.up(x)))


parser = argparse.ArgumentParser()
parser.add_argument("--shard", choices=["ddp", "fsdp2", "fsdp1", "zero"], default="ddp")
parser.add_argument("--accumulate", type=int, default=1)
options = parser.parse_args()
rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
torch.manual_seed(0)
model = nn.Sequential(nn.Embedding(WORDS, WIDTH), Block(), Block(), nn.Linear(WIDTH, WORDS))
make_optimizer = torch.optim.AdamW
if world > 1:
    dist.init_process_group("gloo")
    if options.shard in ("ddp", "zero"):
        model = DistributedDataParallel(model)
    elif options.shard == "fsdp1":
        model = FullyShardedDataParallel(model, use_orig_params=True, device_id=torch.device("cpu"))
    else:
        for layer in (model[1], model[2], model):
            fully_shard(layer)
if world > 1 and options.shard == "zero":
    optimizer = ZeroRedundancyOptimizer(model.parameters(), make_optimizer, lr=1e-3)
else:
    optimizer = make_optimizer(model.parameters(), lr=1e-3)
tracer = ttrace.attach(model, optimizer)

data = torch.Generator().manual_seed(1)
losses = []
for _ in range(STEPS):
    tokens = torch.randint(WORDS, (BATCH, LENGTH + 1), generator=data)
    mine = tokens.chunk(world)[rank].chunk(options.accumulate)
    total = 0.0
    with tracer.step():
        for part in mine:
            logits = model(part[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), part[:, 1:].flatten()) / len(mine)
            loss.backward()
            total += loss.item()
        if world > 1 and options.shard == "fsdp1":
            model.clip_grad_norm_(1.0)  # the other one knows nothing of shards
        else:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    losses.append(total)
    print(f"rank {rank}: loss {total:.4f}")
if world > 1:
    dist.destroy_process_group()
