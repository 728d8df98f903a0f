"""Tensor parallelism by hand: heads over ranks, with queries, keys and values in one weight."""

import torch
import torch.distributed as dist
from team import generate, predict_next, start, train
from torch import nn

import ttrace

WIDTH, HEADS = 32, 4
rank, world = start()


class Copy(torch.autograd.Function):
    """The whole input on every rank; its gradient is the sum of theirs."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        grad = grad.contiguous()
        dist.all_reduce(grad)
        return grad


class Reduce(torch.autograd.Function):
    """The sum over ranks; its gradient goes to all of them."""

    @staticmethod
    def forward(ctx, x):
        x = x.contiguous()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        qkv, out = torch.randn(3 * WIDTH, WIDTH) * 0.1, torch.randn(WIDTH, WIDTH) * 0.1
        mine = [part.chunk(world)[rank] for part in qkv.chunk(3)]
        self.qkv = nn.Parameter(torch.cat(mine))
        self.out = nn.Parameter(out.chunk(world, dim=1)[rank].contiguous())

    def forward(self, x):
        x = Copy.apply(x)
        q, k, v = nn.functional.linear(x, self.qkv).chunk(3, dim=-1)
        q, k, v = (t.unflatten(-1, (HEADS // world, -1)).transpose(1, 2) for t in (q, k, v))
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return Reduce.apply(nn.functional.linear(mixed.transpose(1, 2).flatten(2), self.out))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.attention = Attention()
        self.head = nn.Linear(WIDTH, 50)

    def forward(self, ids):
        x = self.embed(ids)
        return self.head(x + self.attention(self.norm(x)))


model = Model()
group = dist.group.WORLD
ttrace.annotate(
    model.attention,
    parameters={
        "qkv": ttrace.Split.over(group, dim=0, sections=(WIDTH, WIDTH, WIDTH)),
        "out": ttrace.Split.over(group, dim=1),
    },
)


def loss_of(ids):
    return predict_next(model(ids[:, :-1]), ids)


random = generate()
train(model, ([torch.randint(50, (4, 13), generator=random)] for _ in range(2)), loss_of)
