"""Trains a mixture of experts with DeepSpeed, traced by TTrace when a command asks for it.

$ python moe.py
$ torchrun --nproc-per-node 2 moe.py
"""

import os

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.moe.layer import MoE
from deepspeed.moe.utils import split_params_into_different_moe_groups_for_optimizer
from torch import nn

import ttrace

if "RANK" not in os.environ:  # one process, started without a launcher
    os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
deepspeed.init_distributed("gloo")
world, rank = dist.get_world_size(), dist.get_rank()


class Mixture(nn.Module):
    """Four experts, shared out among all ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm, self.head = nn.Embedding(64, 32), nn.LayerNorm(32), nn.Linear(32, 64)
        expert = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32))
        self.moe = MoE(32, expert, num_experts=4, ep_size=world, drop_tokens=False, use_rts=False)
        own = self.moe.deepspeed_moe.experts.deepspeed_experts
        for number, expert in enumerate(own, start=rank * len(own)):  # copies of one until here
            nn.init.normal_(expert[0].weight, generator=torch.Generator().manual_seed(number))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        mixed, _, _ = self.moe(self.norm(x))
        return self.head(x + mixed)


torch.manual_seed(0)
model = Mixture()
groups = [{"params": list(model.parameters()), "name": "all"}]
optimizer = torch.optim.AdamW(split_params_into_different_moe_groups_for_optimizer(groups), lr=1e-3)
# Clipping would be by the mean of the norms of all ranks, each with its own experts.
config = {"train_micro_batch_size_per_gpu": 16 // world, "gradient_clipping": 0.0}
model, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
tracer = ttrace.attach(model)

losses = []
for step in range(3):
    batch = torch.randint(64, (16, 17), generator=torch.Generator().manual_seed(step))
    tokens = batch.chunk(world)[rank]
    with tracer.step():
        logits = model(tokens[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        model.backward(loss)
        model.step()
    losses.append(loss.item())
