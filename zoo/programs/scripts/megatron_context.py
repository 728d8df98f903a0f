"""Megatron-Core with a context-parallel attention of one's own: every rank gathers all keys."""

import os
from functools import partial

import torch
import torch.distributed as dist
from megatron_team import make_gpt, make_layers, on_cpu, parallel_state, start, train
from torch import nn


class Gather(torch.autograd.Function):
    """All ranks' part of the sequence, rank after rank; each gets back the gradient of its own."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        parts = [torch.empty_like(x) for _ in range(group.size())]
        dist.all_gather(parts, x.contiguous(), group=group)
        return torch.cat(parts)

    @staticmethod
    def backward(ctx, grad):
        grad = grad.contiguous()
        dist.all_reduce(grad, group=ctx.group)
        return grad.chunk(ctx.group.size())[ctx.group.rank()], None


class GatheredAttention(nn.Module):
    def __init__(self, config, layer_number, pg_collection, **kwargs):
        super().__init__()
        self.scale = config.kv_channels**-0.5
        self.group = pg_collection.cp

    def positions(self, length):
        """Of the tokens of all ranks: each has one chunk from the front and one from the back."""
        world = self.group.size()
        chunks = torch.arange(length * world).chunk(2 * world)
        return [torch.cat([chunks[rank], chunks[-1 - rank]]) for rank in range(world)]

    def forward(self, query, key, value, attention_mask, **kwargs):
        positions = self.positions(len(query))
        key, value = Gather.apply(key, self.group), Gather.apply(value, self.group)
        repeat = query.size(2) // key.size(2)
        key, value = (x.repeat_interleave(repeat, dim=2) for x in (key, value))
        scores = torch.einsum("qbhd,kbhd->bhqk", query, key) * self.scale
        hidden = torch.cat(positions)[None, :] > positions[self.group.rank()][:, None]
        scores = scores.masked_fill(hidden, float("-inf")).softmax(-1)
        return torch.einsum("bhqk,kbhd->qbhd", scores, value).flatten(2)


def loss_function(loss_mask, losses):
    total = torch.stack([(losses * loss_mask).sum().view(1), loss_mask.sum().view(1)])
    count = total[1].detach()
    dist.all_reduce(count, group=parallel_state.get_context_parallel_group())
    return total[0] / count, {}


def forward_step(data, model):
    batch = next(data)
    losses = model(batch["tokens"], batch["position_ids"], None, labels=batch["labels"])
    return losses, partial(loss_function, batch["loss_mask"])


with on_cpu():
    layout, config = start(cp=int(os.environ["WORLD_SIZE"]))
    block = make_layers(config)
    for spec in block.layer_specs:
        spec.submodules.self_attention.submodules.core_attention = GatheredAttention
    train(layout, config, make_gpt(layout, config, block), forward_step)
