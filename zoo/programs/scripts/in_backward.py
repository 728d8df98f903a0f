"""FSDP2 with one optimizer for each parameter, which steps as soon as its gradient is there."""

import torch
from team import draw_share, make_mlp, start, stop
from torch import nn
from torch.distributed.fsdp import fully_shard

import ttrace

rank, world = start()
model = make_mlp()
if world > 1:
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
optimizers = {p: torch.optim.AdamW([p], lr=1e-3) for p in model.parameters()}


def update(parameter):
    optimizers[parameter].step()
    optimizers[parameter].zero_grad()


for p in model.parameters():
    p.register_post_accumulate_grad_hook(update)
tracer = ttrace.attach(model, list(optimizers.values()))

for x, y in draw_share(2, (8, 16), (8, 4)):
    with tracer.step():
        nn.functional.mse_loss(model(x), y).backward()

stop()
