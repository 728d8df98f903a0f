"""Layouts: how a model is spread over the ranks, and which part of the batch each of them takes.

Enters: the whole model and the whole batch, the same on every rank. Leaves: the model as this rank
trains it, and its microbatches. Local losses are means over equal parts, and data-parallel ranks
are averaged, so every layout trains as one process does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn.parallel import DistributedDataParallel

from zoo.clean.architecture import Batch
from zoo.clean.by_hand import split_parameters
from zoo.clean.parts import Attention
from zoo.clean.tensor_parallel import tensor_parallel
from zoo.clean.words import LayoutName

Spread = Callable[[nn.Module, str], nn.Module]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """`dim` is the one that ranks split: samples, positions, or none where all see everything."""

    spread: Spread
    ranks: int = 1
    microbatches: int = 1
    dim: int | None = 0

    def mine(self, batch: Batch) -> list[Batch]:
        """What this rank computes, one microbatch after the other."""
        if self.dim is not None and self.ranks > 1:
            batch = batch.chunk(self.ranks, self.dim)[dist.get_rank()]
        return batch.chunk(self.microbatches)


def whole(model: nn.Module, device: str) -> nn.Module:
    return model


def replicated(model: nn.Module, device: str) -> nn.Module:
    return DistributedDataParallel(model)


def sharded(model: nn.Module, device: str) -> nn.Module:
    """FSDP2, a group of parameters for each block and one for the rest."""
    mesh = _mesh(device)
    for part in (*_blocks(model), model):
        fully_shard(part, mesh=mesh)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_force_sum_reduction_for_comms(True)  # gloo cannot average
    return model


def tensor_split(model: nn.Module, device: str) -> nn.Module:
    tensor_parallel(model, _mesh(device))
    return model


def split_by_hand(model: nn.Module, device: str) -> nn.Module:
    split_parameters(model)
    return model


def sequence_split(model: nn.Module, device: str) -> nn.Module:
    """Keys and values are gathered; gradients are averaged like those of data-parallel ranks."""
    for module in model.modules():
        if isinstance(module, Attention):
            module.gathers = True
    return replicated(model, device)


LAYOUTS: Mapping[LayoutName, Layout] = {
    "one": Layout(spread=whole),
    "ddp2": Layout(spread=replicated, ranks=2),
    "ddp4": Layout(spread=replicated, ranks=4),
    "fsdp2": Layout(spread=sharded, ranks=2),
    "accumulate2": Layout(spread=whole, microbatches=2),
    "accumulate4": Layout(spread=whole, microbatches=4),
    "ddp2-accumulate2": Layout(spread=replicated, ranks=2, microbatches=2),
    "tp2": Layout(spread=tensor_split, ranks=2, dim=None),
    "tp2-by-hand": Layout(spread=split_by_hand, ranks=2, dim=None),
    "cp2": Layout(spread=sequence_split, ranks=2, dim=1),
}


def unreduced(model: nn.Module) -> AbstractContextManager[None]:
    """Gradients stay on their rank; for all microbatches but the last."""
    return model.no_sync() if isinstance(model, DistributedDataParallel) else nullcontext()


def _mesh(device: str) -> DeviceMesh:
    return init_device_mesh(device, (dist.get_world_size(),), mesh_dim_names=("ranks",))


def _blocks(model: nn.Module) -> Iterator[nn.Module]:
    """Members of the outermost lists of modules."""
    for child in model.children():
        if isinstance(child, nn.ModuleList):
            yield from child
        else:
            yield from _blocks(child)
