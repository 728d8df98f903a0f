"""Where the modules of a native PyTorch model stand, and which samples this rank sees.

Enters: a module inside whatever wrappers: DDP, FSDP, a compiler, a checkpoint wrapper. Leaves:
canonical paths, those of the model without wrappers; the class that a person wrote; and the place
among data-parallel ranks that the wrapper which splits the batch knows.

Parameters that a wrapper holds in another form than that module are HeldParameter here:

    FullyShardedDataParallel   ranges of flattened parameters, side by side in one flat one
    DDP over tensor parallel   local tensors, which are DTensors only while the model runs
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
from torch.nn.parallel import DataParallel, DistributedDataParallel

from ttrace.adapters.base import BeforeClip
from ttrace.adapters.flat import flat_parts
from ttrace.adapters.native import dtensor
from ttrace.adapters.patching import patched
from ttrace.core.ids import distinct
from ttrace.core.layout import Layout
from ttrace.core.record import COMPUTE_DTYPE, REDUCTION_DTYPE
from ttrace.trace.dtypes import dtype_name

# Attribute names under which wrappers keep the wrapped module; no user's module is called so.
_WRAPPER_ATTRIBUTES = frozenset(
    {"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_forward_module"}
)
_DISTRIBUTED = "torch.distributed."
ParameterName = tuple[str, str]  # module, parameter
FLAT = "_flat_param"  # the name of a flat parameter in the module that holds it


class ModuleTree:
    """The modules of a model, walked again only once one of them has other children.

    A step asks for all of them nearly ten times; looking for a change costs a tenth of a walk.
    """

    def __init__(self, roots: Iterable[tuple[str, nn.Module]]) -> None:
        self._roots = tuple(roots)
        self._found: dict[int, tuple[str, nn.Module]] = {}
        self._children: list[tuple[nn.Module, dict[str, nn.Module | None]]] = []

    def modules(self) -> Iterable[tuple[str, nn.Module]]:
        """Canonical path and module of each, wrappers left out; one used twice by its first."""
        same = (module._modules == children for module, children in self._children)  # noqa: SLF001
        if not self._found or not all(same):
            parts = (distinct(walk(root, path)) for path, root in self._roots)
            found: dict[int, tuple[str, nn.Module]] = {}
            for path, module in chain.from_iterable(parts):
                found.setdefault(id(module), (path, module))
            every = chain.from_iterable(root.modules() for _, root in self._roots)
            self._children = [(module, dict(module._modules)) for module in every]  # noqa: SLF001
            self._found = found
        return self._found.values()


def walk(module: nn.Module, path: str = "") -> Iterator[tuple[str, nn.Module]]:
    """Canonical paths; a wrapper and what it wraps share one path, which the wrapped one keeps."""
    waiting = [(path, module)]
    while waiting:
        path, module = waiting.pop()
        children = list(module.named_children())
        inner = _wrapped(module, children)
        if inner is not None:
            waiting.append((path, inner))
            continue
        yield path, module
        waiting += [(f"{path}.{name}" if path else name, child) for name, child in children[::-1]]


def unwrapped(module: nn.Module) -> nn.Module:
    inner = _wrapped(module, module.named_children())
    return module if inner is None else unwrapped(inner)


def written_class(module: nn.Module) -> type:
    """`fully_shard` and `replicate` make a class of their own that derives from the user's."""
    written = (c for c in type(module).__mro__ if not c.__module__.startswith(_DISTRIBUTED))
    return next(written)


def batch_place(roots: Iterable[nn.Module]) -> tuple[int, int] | None:
    """This rank among those that see other samples, from whichever wrapper splits the batch."""
    for module in (module for root in roots for module in root.modules()):
        if isinstance(module, DistributedDataParallel):
            group = module.process_group
            return dist.get_rank(group), dist.get_world_size(group)
        if isinstance(module, FullyShardedDataParallel):
            return _flat_place(module)
        if isinstance(module, FSDPModule) and (place := _fsdp_place(module)) is not None:
            return place
    return None


def replicated_modules(
    roots: Iterable[nn.Module], modules: Iterable[tuple[str, nn.Module]]
) -> dict[str, tuple[int, ...]]:
    """Paths of modules inside of wrappers that keep them alike, and on which ranks they do.

    Not of modules that hold anything that a wrapper was told to ignore.
    """
    ranks: dict[int, tuple[int, ...]] = {}
    for wrapper in (module for root in roots for module in root.modules()):
        group = _group_of_replicas(wrapper)
        if group is None:
            continue
        own = tuple(dist.get_process_group_ranks(group))
        ignored: set[str] = getattr(wrapper, "parameters_to_ignore", set())
        inner: Any = wrapper.module
        for path, module in inner.named_modules():
            names = (name for name, _ in module.named_parameters(recurse=False))
            if not any(f"{path}.{name}".lstrip(".") in ignored for name in names):
                ranks[id(module)] = own
    return {path: ranks[id(module)] for path, module in modules if id(module) in ranks}


def _group_of_replicas(wrapper: nn.Module) -> Any:
    """The process group that a wrapper keeps alike; None for a module that is no such wrapper."""
    if isinstance(wrapper, DistributedDataParallel):
        return wrapper.process_group
    if isinstance(wrapper, FullyShardedDataParallel):
        return getattr(wrapper, "_inter_node_pg", None) or wrapper.process_group
    return None


def precision_of(roots: Iterable[nn.Module]) -> dict[str, str]:
    """What FSDP was told by its MixedPrecision or MixedPrecisionPolicy."""
    found: dict[str, set[torch.dtype]] = {COMPUTE_DTYPE: set(), REDUCTION_DTYPE: set()}
    for policy in _policies(module for root in roots for module in root.modules()):
        compute = getattr(policy, "param_dtype", None)
        reduction = getattr(policy, "reduce_dtype", None) or compute
        for name, dtype in ((COMPUTE_DTYPE, compute), (REDUCTION_DTYPE, reduction)):
            found[name] |= set() if dtype is None else {dtype}
    named = {name: sorted(map(dtype_name, dtypes)) for name, dtypes in found.items()}
    return {name: ", ".join(dtypes) for name, dtypes in named.items() if dtypes}


def _policies(modules: Iterable[nn.Module]) -> Iterator[object]:
    for module in modules:
        if isinstance(module, FullyShardedDataParallel):
            yield getattr(module, "mixed_precision", None)
        elif isinstance(module, FSDPModule):
            with suppress(AttributeError):
                yield from (group.mp_policy for group in _fsdp_groups(module))


def holds_unsharded_gradients(roots: Iterable[nn.Module]) -> bool:
    """Whether FSDP2 keeps gradients that it has not reduced yet: those of earlier microbatches."""
    sharded = (m for root in roots for m in root.modules() if isinstance(m, FSDPModule))
    try:
        return any(
            parameter.unsharded_accumulated_grad is not None
            or getattr(getattr(parameter, "_unsharded_param", None), "grad", None) is not None
            for module in sharded
            for group in _fsdp_groups(module)
            for parameter in group.fsdp_params
        )
    except AttributeError:
        return False


def _wrapped(module: nn.Module, children: Iterable[tuple[str, nn.Module]]) -> nn.Module | None:
    if isinstance(module, (DistributedDataParallel, DataParallel)):
        return module.module
    for name, child in children:
        if name in _WRAPPER_ATTRIBUTES:
            return child
        if name == "module" and type(module).__name__ in {
            "FullyShardedDataParallel",
            "_FabricModule",
        }:
            return child
    return None


def _flat_place(module: FullyShardedDataParallel) -> tuple[int, int]:
    """A hybrid of FSDP1 has a group that shards, and one over which shards are replicated."""
    index, size = dist.get_rank(module.process_group), dist.get_world_size(module.process_group)
    replicas = getattr(module, "_inter_node_pg", None)
    if replicas is None:
        return index, size
    return dist.get_rank(replicas) * size + index, dist.get_world_size(replicas) * size


def _fsdp_place(module: FSDPModule) -> tuple[int, int] | None:
    try:
        info = _fsdp_groups(module)[0].mesh_info
    except (AttributeError, IndexError):
        return None
    index = getattr(info, "shard_mesh_rank", 0)
    size = getattr(info, "shard_mesh_size", 1)
    replica = getattr(info, "replicate_mesh_rank", 0)
    replicas = getattr(info, "replicate_mesh_size", 1)
    return replica * size + index, replicas * size


def _fsdp_groups(module: FSDPModule) -> Sequence[Any]:
    found: Sequence[Any] = _first_attribute(
        module._get_fsdp_state(),  # noqa: SLF001
        lambda state: state._fsdp_param_groups,  # noqa: SLF001
        lambda state: [state._fsdp_param_group],  # noqa: SLF001  (before torch 2.12)
    )
    return [group for group in found if group is not None]


def _first_attribute(value: Any, *getters: Callable[[Any], Any]) -> Any:
    for getter in getters:
        try:
            return getter(value)
        except AttributeError:
            continue
    raise AttributeError(f"{type(value).__name__} has none of the expected attributes")


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
