"""torchao's float8 training under tensor parallelism, where modules are given fp8 tensors."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import parallelize_module

import ttrace

WIDTH = 64


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, 2 * WIDTH, bias=False)
        self.up = nn.Linear(WIDTH, 2 * WIDTH, bias=False)
        self.down = nn.Linear(2 * WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = self.down(nn.functional.silu(self.gate(x)) * self.up(x))
        return hidden


def train() -> None:
    """One prepared input is quantised for two layers; products are emulated."""
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training
    from torchao.float8.float8_tensor_parallel import (
        Float8ColwiseParallel,
        Float8RowwiseParallel,
        PrepareFloat8ModuleInput,
    )

    torch.manual_seed(0)
    model = nn.Sequential(nn.LayerNorm(WIDTH), Gated())
    convert_to_float8_training(model, config=Float8LinearConfig(emulate=True))
    if dist.is_initialized():
        mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))
        prepared = PrepareFloat8ModuleInput(
            input_layouts=(Replicate(),),
            desired_input_layouts=(Replicate(),),
            fwd_config_submodule_fqn="gate",
        )
        parallelize_module(
            model,
            mesh,
            {
                "1": prepared,
                "1.gate": Float8ColwiseParallel(),
                "1.up": Float8ColwiseParallel(),
                "1.down": Float8RowwiseParallel(),
            },
        )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tracer = ttrace.attach(model, optimizer)
    with tracer.step():
        model(torch.randn(4, 16, WIDTH)).square().mean().backward()
        optimizer.step()
