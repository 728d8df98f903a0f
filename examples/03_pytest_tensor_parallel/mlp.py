"""A tensor-parallel MLP by hand: w1 split by rows, w2 by columns, one reduction on either way."""

import os

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

import ttrace


class CopyToRanks(torch.autograd.Function):
    """Every rank uses the whole input: its gradient is the sum of theirs."""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad: Tensor) -> Tensor:
        grad = grad.clone()
        dist.all_reduce(grad)
        return grad


class SumOverRanks(torch.autograd.Function):
    """Every rank has a term of the output."""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, grad: Tensor) -> Tensor:
        return grad


class ParallelMLP(nn.Module):
    """The same parameters on any number of ranks."""

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))
        w1, w2 = torch.randn(hidden, dim) * dim**-0.5, torch.randn(dim, hidden) * hidden**-0.5
        self.w1 = nn.Parameter(distribute_tensor(w1, mesh, [Shard(0)]))
        self.w2 = nn.Parameter(distribute_tensor(w2, mesh, [Shard(1)]))

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.relu(CopyToRanks.apply(x) @ self.w1.to_local().T)
        term = hidden @ self.w2.to_local().T
        return term if os.environ.get("FORGET_REDUCTION") else SumOverRanks.apply(term)


def train() -> None:
    """One step; the same code on one rank is the reference."""
    torch.manual_seed(0)
    model = nn.Sequential()
    model.add_module("before", nn.Linear(16, 16))
    model.add_module("mlp", ParallelMLP(16, 64))
    model.add_module("after", nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = torch.randn(8, 16), torch.randn(8, 4)
    tracer = ttrace.attach(model, optimizer)
    with tracer.step():
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
