"""Experts of DeepSpeed's MoE layers, which ranks share out: what they are called, and see.

Enters: the modules of a model. Leaves: experts by their number in the whole layer. Every rank
routes its own tokens, to as many slots of an expert as one of them needs: what is laid out in slots
is nowhere a part of something that another layout has too, nor is the loss that balances them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch.distributed as dist
from deepspeed.moe.layer import MoE
from deepspeed.moe.sharded_moe import MOELayer, TopKGate
from torch import nn

from ttrace.core.ids import Kind

_EXPERTS = "experts.deepspeed_experts"
_MADE = (Kind.OUTPUT, Kind.GRAD_OUTPUT)


def expert_paths(modules: Iterable[tuple[str, nn.Module]]) -> Iterator[tuple[str, nn.Module]]:
    """Paths with the numbers of experts in the whole layer."""
    first: dict[str, int] = {}
    for path, module in modules:
        if isinstance(module, MOELayer) and module.ep_group is not None:
            below = f"{path}.{_EXPERTS}." if path else f"{_EXPERTS}."
            first[below] = dist.get_rank(module.ep_group) * module.num_local_experts
        yield _numbered(path, first), module


def of_experts(module: nn.Module) -> frozenset[int]:
    """The ids of all modules inside of layers that see tokens in slots."""
    layers = (layer for layer in module.modules() if isinstance(layer, MOELayer))
    return frozenset(id(inner) for layer in layers for inner in layer.experts.modules())


def is_of_slots(module: nn.Module, kind: Kind, slot: str) -> bool:
    """Whether it is made for the tokens of this rank together: routes, counts, their loss."""
    if isinstance(module, TopKGate):
        return kind in _MADE
    return isinstance(module, (MoE, MOELayer)) and kind in _MADE and slot != "0"


def _numbered(path: str, first: dict[str, int]) -> str:
    for below, number in first.items():
        if path.startswith(below):
            local, dot, rest = path.removeprefix(below).partition(".")
            return f"{below}{int(local) + number}{dot}{rest}"
    return path
