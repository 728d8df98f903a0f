"""Trains a model in the stages of a DeepSpeed pipeline, traced by TTrace when asked to.

$ python pipeline.py
$ torchrun --nproc-per-node 2 pipeline.py
"""

import os
from collections.abc import Iterator

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.pipe import PipelineModule
from torch import nn

import ttrace

if "RANK" not in os.environ:  # one process, started without a launcher
    os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
deepspeed.init_distributed("gloo")
torch.manual_seed(0)
layers = [nn.Embedding(64, 32), nn.Linear(32, 96), nn.GELU(), nn.Linear(96, 32), nn.LayerNorm(32)]
layers += [nn.Linear(32, 96), nn.GELU(), nn.Linear(96, 32), nn.LayerNorm(32), nn.Linear(32, 64)]


def loss_of(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The cross entropy of all tokens."""
    return nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


def microbatches(seed: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """The four of a step, which the first and the last stage read."""
    batch = torch.randint(64, (4, 4, 17), generator=torch.Generator().manual_seed(seed))
    return ((tokens[:, :-1], tokens[:, 1:]) for tokens in batch)


module = PipelineModule(layers, num_stages=dist.get_world_size(), loss_fn=loss_of)
for parameter in module.parameters():  # or DeepSpeed clips by the norm of the first stage
    parameter.model_parallel = True
config = {"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 4}
optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3)
model, *_ = deepspeed.initialize(model=module, optimizer=optimizer, config=config)
tracer = ttrace.attach(model)

losses = []
for step in range(3):
    with tracer.step():
        loss = model.train_batch(microbatches(step))
    losses.append(loss.item())
