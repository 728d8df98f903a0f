"""Tensor parallelism with DTensor and sequence parallelism, for models made of our blocks.

Enters: a whole model whose parts have the names of zoo.clean.parts, and a mesh of one axis.
Leaves: the same model with every parameter a DTensor; between blocks each rank has a part of the
sequence.
"""

from __future__ import annotations

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from zoo.clean.parts import Block

_WHOLE, _PART = Replicate(), Shard(1)
_NORM = SequenceParallel(use_local_output=True)  # a residual beside it is a plain tensor


def tensor_parallel(model: nn.Module, mesh: DeviceMesh) -> None:
    parallelize_module(model, mesh, _outside(model))
    for module in model.modules():
        if isinstance(module, Block):
            parallelize_module(module, mesh, _inside(module))


def _outside(model: nn.Module) -> dict[str, ParallelStyle]:
    embedding = RowwiseParallel(input_layouts=_WHOLE, output_layouts=_PART)
    plan: dict[str, ParallelStyle] = {
        "tokens": embedding,
        "places": embedding,
        "norm": _NORM,
        "head": ColwiseParallel(input_layouts=_PART, output_layouts=_WHOLE),
    }
    has = dict(model.named_children())
    return {name: style for name, style in plan.items() if name in has}


def _inside(block: Block) -> dict[str, ParallelStyle]:
    plan: dict[str, ParallelStyle] = {
        "norm1": _NORM,
        "norm2": _NORM,
        "attention": PrepareModuleInput(
            input_layouts=(_PART, None), desired_input_layouts=(_WHOLE, None)
        ),
        "attention.wq": ColwiseParallel(),
        "attention.wk": ColwiseParallel(),
        "attention.wv": ColwiseParallel(),
        "attention.wo": RowwiseParallel(output_layouts=_PART),
        "mlp": PrepareModuleInput(input_layouts=(_PART,), desired_input_layouts=(_WHOLE,)),
        "mlp.up": ColwiseParallel(),
        "mlp.down": RowwiseParallel(output_layouts=_PART),
    }
    return plan | ({"mlp.gate": ColwiseParallel()} if hasattr(block.mlp, "gate") else {})
