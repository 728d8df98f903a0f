"""Parameters that a wrapper holds in another form than the module that a person wrote.

    FullyShardedDataParallel   ranges of flattened parameters, side by side in one flat one
    DDP over tensor parallel   local tensors, which are DTensors only while the model runs

Enters: the modules of a model. Leaves: what of which parameter this rank holds, and where.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel

from ttrace.adapters.base import BeforeClip
from ttrace.adapters.flat import flat_parts
from ttrace.adapters.native import dtensor
from ttrace.adapters.patching import patched
from ttrace.core.layout import Layout

ParameterName = tuple[str, str]  # module, parameter
FLAT = "_flat_param"  # the name of a flat parameter in the module that holds it


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldParameter:
    """A part of a parameter; `tensor` is what the optimizer knows.

    `computes`: backward leaves this rank's gradient in it; otherwise the module has other tensors
    while it runs.
    """

    tensor: nn.Parameter
    cut: Callable[[torch.Tensor], Iterable[tuple[torch.Tensor, Layout]]]
    layout: Layout | None = None  # of the gradient, where that arrives in one piece
    computes: bool = False

    def parts(self, value: torch.Tensor) -> Iterable[tuple[torch.Tensor, Layout | None]]:
        """What of a value like `tensor` is of this parameter: itself, its gradient, its state."""
        if value.shape != self.tensor.shape:
            return [(value, None)]  # a count of steps
        return self.cut(value.detach())


def held_parameters(
    roots: Iterable[nn.Module], modules: Iterable[tuple[str, nn.Module]]
) -> dict[ParameterName, HeldParameter]:
    paths = {id(module): path for path, module in modules}
    found: dict[ParameterName, HeldParameter] = {}
    for module in (module for root in roots for module in root.modules()):
        if isinstance(module, FullyShardedDataParallel):
            found |= _flat(module, paths)
        for name, parameter in module.named_parameters(recurse=False):
            spec = getattr(parameter, "_st_info", None)
            if spec is not None and id(module) in paths:
                found[paths[id(module)], name] = _localized(parameter, spec)
    return found


def _localized(parameter: nn.Parameter, spec: Any) -> HeldParameter:
    layout = dtensor.layout_of(spec, spec.placements)
    whole = Layout.full(parameter.shape) if layout is None else layout
    return HeldParameter(
        tensor=parameter, cut=lambda value: [(value, whole)], layout=layout, computes=True
    )


def _flat(
    module: FullyShardedDataParallel, paths: dict[int, str]
) -> dict[ParameterName, HeldParameter]:
    """Empty ranges too: what a rank holds nothing of is no parameter that is missing."""
    handle: Any = module._handle  # noqa: SLF001  (no public way to ask)
    if handle is None:
        return {}
    flat = handle.flat_param
    found = {}
    for number, info in enumerate(flat._param_infos):  # noqa: SLF001
        own = None if flat._params is None else flat._params[number]  # noqa: SLF001
        held = _range_of(flat, number, own)
        if id(info.module) in paths and held is not None:
            found[paths[id(info.module)], info.param_name] = held
    return found


def _range_of(flat: Any, number: int, own: nn.Parameter | None) -> HeldParameter | None:
    """One parameter in a flat one; None where it is held whole, under its own name."""
    shape, shard = flat._shapes[number], flat._shard_param_infos[number]  # noqa: SLF001
    if own is not None and own.shape == shape:
        return None
    start, stop, offset = 0, 0, 0
    if shard.in_shard:
        start, stop = shard.intra_param_start_idx, shard.intra_param_end_idx + 1
        offset = 0 if own is not None else shard.offset_in_shard

    def cut(value: torch.Tensor) -> Iterator[tuple[torch.Tensor, Layout]]:
        mine = value.reshape(-1)[offset : offset + stop - start]
        return flat_parts(mine, Layout.full(shape), shape, start, stop)

    return HeldParameter(tensor=flat if own is None else own, cut=cut)


@contextmanager
def watch_clipping(before: BeforeClip) -> Iterator[None]:
    """FullyShardedDataParallel clips by a method of its own, which tells the norm afterwards."""

    def clip(original: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        before(None)
        norm: torch.Tensor = original(*args, **kwargs)
        before(norm)
        return norm

    with patched(FullyShardedDataParallel, "clip_grad_norm_", clip):
        yield
