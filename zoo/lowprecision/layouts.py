"""Layouts: how a converted model is spread over two ranks, and which samples each of them takes.

Tensor parallelism of our own linears is made by hand, that of torchao's with DTensors (torchao.py).
"""

from __future__ import annotations

from typing import Any, cast

import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from ttrace.demo.model import Transformer
from zoo.lowprecision.linear import GatherForAll, Part, QuantisedLinear
from zoo.native.collectives import Scatter

COLUMN = ("wq", "wk", "wv", "w1", "w3")
ROW = ("wo", "w2")


def replicated(model: Transformer, *, compresses: bool = False) -> nn.Module:
    made = DistributedDataParallel(model)
    if compresses:
        # unannotated, as one is that torch does not take for another
        made.register_comm_hook(None, lambda _, bucket: _in_bf16(bucket))
    return made


def _in_bf16(bucket: Any) -> Any:
    """torch's bf16_compress_hook, which needs NCCL."""
    sent = bucket.buffer().bfloat16() / dist.get_world_size()
    done = dist.all_reduce(sent, async_op=True).get_future()
    return done.then(lambda _: bucket.buffer().copy_(sent))


def sharded(
    model: Transformer, device: str = "cpu", policy: MixedPrecisionPolicy | None = None
) -> nn.Module:
    """FSDP2, a group of parameters for each layer and one for the rest."""
    mesh = mesh_of_all(device)
    for part in (*model.layers, model):
        fully_shard(part, mesh=mesh, mp_policy=policy or MixedPrecisionPolicy())
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_force_sum_reduction_for_comms(True)  # gloo cannot average
    return model


def mesh_of_all(device: str) -> DeviceMesh:
    return init_device_mesh(device, (dist.get_world_size(),), mesh_dim_names=("ranks",))


def split_by_hand(model: Transformer, *, sequence: bool) -> nn.Module:
    """Every linear of a block keeps its part of the weight."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    for name, module in model.named_modules():
        last = name.rpartition(".")[2]
        if not isinstance(module, nn.Linear) or last not in (*COLUMN, *ROW):
            continue
        assert isinstance(module, QuantisedLinear)
        module.part = Part.COLUMN if last in COLUMN else Part.ROW
        module.is_sequence_split = sequence
        dim = 0 if last in COLUMN else 1
        part = module.weight.detach().chunk(ranks, dim)[rank].contiguous()
        module.weight = nn.Parameter(part.clone())
    if sequence:
        _swap(model, "tok_embeddings", PartOfSequence)
        _swap(model, "output", WholeSequence)
    return model


def own_parts(model: nn.Module) -> frozenset[int]:
    """Ids of parameters of which each rank has its own part."""
    weights = (
        module.weight
        for module in model.modules()
        if isinstance(module, QuantisedLinear) and module.part is not Part.WHOLE
    )
    sharded = (p for p in model.parameters() if isinstance(p, DTensor))
    return frozenset(map(id, (*weights, *sharded)))


def _swap(model: nn.Module, name: str, kind: type[nn.Module]) -> None:
    """The same parameters in a module that is called otherwise."""
    module = getattr(model, name)
    module.__class__ = kind


class PartOfSequence(nn.Embedding):
    def forward(self, tokens: Tensor) -> Tensor:
        return cast(Tensor, Scatter.apply(super().forward(tokens), 1))


class WholeSequence(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return F.linear(cast(Tensor, GatherForAll.apply(x, 1)), self.weight)


def sum_over_sequence(model: nn.Module) -> None:
    """Gradients of norms and biases that each rank has for its part of the sequence."""
    for parameter in model.parameters():
        is_of_part = parameter.dim() == 1
        if is_of_part and not isinstance(parameter, DTensor):
            assert parameter.grad is not None
            dist.all_reduce(parameter.grad)


def own_samples(batch: Tensor, layout: str) -> Tensor:
    if layout not in ("ddp2", "fsdp2"):
        return batch
    return batch.chunk(dist.get_world_size())[dist.get_rank()]
