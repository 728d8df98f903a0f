"""The same start for every layout, without a checkpoint: values from names and logical positions.

    ttrace.generate_parameters(model, seed=0)  # in both runs, after the model was parallelised

Enters: a model in any layout an adapter knows, traced or not. Leaves: its parameters overwritten,
every rank's shard by itself, with bitwise the same logical values everywhere. How large the values
are is read from the kind of module, its parameter's name and the logical shape, never from the
current values: those of a shard differ from those of the whole.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from ttrace.adapters.base import Adapter, Parameter
from ttrace.core.ids import Kind, TensorId
from ttrace.core.layout import Layout
from ttrace.errors import UsageError
from ttrace.generate.counter import fill, keep_mask

# Chosen: far enough from 0 and 1 that a bias added twice or a norm weight left out shows, and
# small enough that a deep network keeps its scale.
_BIAS_STD = 0.02
_GAIN_STD = 0.1

_NORM = re.compile(r"norm(\dd)?$", re.IGNORECASE)  # LayerNorm, LlamaRMSNorm, BatchNorm2d
_CONVOLUTION = re.compile(r"Conv(Transpose)?\dd$")
_EMBEDDING = re.compile(r"Embedding(Bag)?$")
_GAINS = frozenset({"weight", "scale", "gamma"})


def generate_parameters(model: nn.Module | Sequence[nn.Module], *, seed: int = 0) -> None:
    """Overwrite every parameter. Call it before the optimizer copies any of them."""
    chunks = model if isinstance(model, (list, tuple)) else [model]
    if not chunks or not all(isinstance(chunk, nn.Module) for chunk in chunks):
        raise UsageError(
            "ttrace.generate_parameters needs the model, a torch.nn.Module; found "
            f"{type(model).__name__}"
        )
    # Only who calls it pays for the frameworks' modules.
    from ttrace.adapters.registry import find_adapter

    adapter = find_adapter(model)
    shards = [_shard(parameter, adapter) for parameter in adapter.parameters()]
    faults = [f"{shard.name}: {shard.fault}" for shard in shards if shard.fault]
    if not shards:
        faults = [f"{type(model).__name__} has no parameters: pass the model after it was built"]
    if faults:
        raise UsageError(
            "ttrace.generate_parameters changed nothing:", *(f"  {fault}" for fault in faults)
        )
    holders = _holders(adapter)
    for shard in shards:
        kinds = shard.users or holders.get(shard.holder, [(nn.Module, shard.name)])
        # A tied weight serves several modules; the narrowest scale suits all of them.
        #     [(Embedding, "weight"), (Linear, "weight")] of 1000 x 64: std 1 and 0.072, takes 0.072
        spread = min((spread_of(*kind, shard.layout.shape) for kind in kinds), key=lambda s: s.std)
        fill(
            shard.local,
            shard.layout,
            name=shard.name,
            seed=seed,
            mean=spread.mean,
            std=spread.std,
        )


def generate_tensor(
    shape: Sequence[int] | Layout,
    name: str,
    *,
    seed: int = 0,
    mean: float = 0.0,
    std: float = 1.0,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> torch.Tensor:
    """A tensor of this name, or with a layout the shard of it that the layout describes."""
    layout = _layout(shape)
    tensor = torch.empty(layout.local_shape, dtype=dtype, device=device)
    if not tensor.is_floating_point():
        raise UsageError(f"{name}: ttrace.generate_tensor makes real numbers, not {dtype}")
    fill(tensor, layout, name=name, seed=seed, mean=mean, std=std)
    return tensor


def dropout_mask(
    shape: Sequence[int] | Layout,
    name: str,
    *,
    p: float,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> torch.Tensor:
    """True where dropout with probability p keeps an element: the same in every layout."""
    return keep_mask(_layout(shape), name=name, seed=seed, p=p, device=torch.device(device))


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """The mean and the standard deviation of a parameter's values."""

    mean: float
    std: float


def spread_of(kind: type, name: str, shape: Sequence[int]) -> Spread:
    """What the module's own initialisation gives, by logical shape; unknown modules by shape alone.

    Frameworks have classes of their own for these modules and name them alike, so names decide.
    """
    is_bias = "bias" in name or name == "beta"
    is_gain = len(shape) < 2 and (name in _GAINS or name.endswith("norm_weight"))
    if not is_bias and (_is_a(kind, _NORM) or is_gain):
        return Spread(mean=1.0, std=_GAIN_STD)
    if len(shape) < 2:
        return Spread(mean=0.0, std=_BIAS_STD)
    if _is_a(kind, _EMBEDDING):
        return Spread(mean=0.0, std=1.0)
    # Of a stack of matrices, such as experts', each has its own fan-in.
    fan_in = math.prod(shape[1:]) if _is_a(kind, _CONVOLUTION) else shape[-1]
    return Spread(mean=0.0, std=1 / math.sqrt(3 * max(1, fan_in)))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shard:
    """One rank's part of a parameter, and why it cannot be generated if it cannot."""

    name: str
    holder: int
    users: list[tuple[type, str]]
    local: torch.Tensor
    layout: Layout
    fault: str = ""


def _shard(parameter: Parameter, adapter: Adapter) -> _Shard:
    tensor = parameter.tensor
    local, known = adapter.to_local(tensor)
    held = next(adapter.parts(Kind.PARAM, parameter), None)
    known = known or (held.layout if held is not None else None)
    fault = ""
    if local.device.type == "meta":
        fault = "is on the meta device; call model.to_empty(device=...) first"
    elif not local.is_floating_point():
        fault = f"is of {local.dtype}, not of real numbers; give it its values by yourself"
    elif known is not None and known.partial:
        fault = f"is a term of a sum, {known}; make it a shard or a replica"
    elif known is None and local.shape != tensor.shape:
        fault = (
            f"this rank holds {tuple(local.shape)} of {tuple(tensor.shape)}, and nothing says "
            "which part; use Shard and Replicate placements"
        )
    id_ = TensorId(step=0, module=parameter.module, kind=Kind.PARAM, slot=parameter.name)
    return _Shard(
        name=str(id_).removeprefix("step0/"),
        holder=id(tensor),
        users=[(kind, parameter.name) for kind in parameter.users],
        local=local,
        layout=known or Layout.full(tensor.shape),
        fault=fault,
    )


def _holders(adapter: Adapter) -> dict[int, list[tuple[type, str]]]:
    """Every module class that holds a parameter, and under which name."""
    found: dict[int, list[tuple[type, str]]] = {}
    for _, module in adapter.modules():
        for name, tensor in module.named_parameters(recurse=False):
            found.setdefault(id(tensor), []).append((type(module), name))
    return found


def _is_a(kind: type, pattern: re.Pattern[str]) -> bool:
    return any(pattern.search(base.__name__) for base in kind.__mro__)


def _layout(shape: Sequence[int] | Layout) -> Layout:
    return shape if isinstance(shape, Layout) else Layout.full(shape)
