"""Trains a small language model with DeepSpeed, traced by TTrace when a command asks for it.

$ python train.py --zero 0
$ torchrun --nproc-per-node 2 train.py --zero 2
"""

import argparse
import os

import deepspeed
import torch
import torch.distributed as dist
from torch import nn

import ttrace

parser = argparse.ArgumentParser()
parser.add_argument("--zero", type=int, default=2)
parser.add_argument("--bf16", action="store_true")
parser.add_argument("--accumulate", type=int, default=1)
parser.add_argument("--clip", type=float, default=0.0)
options = parser.parse_args()


class Block(nn.Module):
    """Causal attention and a feed-forward layer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


if "RANK" not in os.environ:  # one process, started without a launcher
    os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
deepspeed.init_distributed("gloo")
torch.manual_seed(0)
blocks = [Block(32) for _ in range(2)]
model = nn.Sequential(nn.Embedding(64, 32), *blocks, nn.LayerNorm(32), nn.Linear(32, 64))
world, rank = dist.get_world_size(), dist.get_rank()
micro = 16 // world // options.accumulate
config = {
    "train_micro_batch_size_per_gpu": micro,
    "gradient_accumulation_steps": options.accumulate,
    "gradient_clipping": options.clip,
    "zero_optimization": {"stage": options.zero, "stage3_param_persistence_threshold": 100},
    "bf16": {"enabled": options.bf16},
}
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
model, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
tracer = ttrace.attach(model)

losses = []
for step in range(3):
    batch = torch.randint(64, (16, 17), generator=torch.Generator().manual_seed(step))
    mine = batch.view(options.accumulate, world, micro, 17)[:, rank]
    with tracer.step():
        for tokens in mine:
            logits = model(tokens[:, :-1]).float()
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
            model.backward(loss)
            model.step()
    losses.append(loss.item())
