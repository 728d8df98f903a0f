"""The parameters of a Megatron model: canonical names, layouts, and sums that are still to come.

Enters: the chunks of this rank and what is known of their modules. Leaves: every parameter once,
with its layout by class and attributes and, of what those leave open, by `sharded_state_dict`. That
is a second opinion, of whoever wrote the module, who also knows modules that no table does: what
disagrees with it is told.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

import torch
from megatron.core.ssm.gated_delta_net import GatedDeltaNet
from megatron.core.transformer.attention import SelfAttention
from torch import nn

from ttrace.adapters.base import Parameter
from ttrace.adapters.megatron.layouts import (
    EMBEDDING_AXIS,
    Ranks,
    embedding_end,
    parameter_layout,
    parameter_name,
    part_of,
    tied_users,
    walk,
    with_global_number,
)
from ttrace.core.ids import display_module
from ttrace.core.layout import Layout, Run

_HEAD_NORMS: tuple[tuple[type, tuple[str, ...]], ...] = (
    (SelfAttention, ("q_layernorm", "k_layernorm")),
    (GatedDeltaNet, ("out_norm",)),
)


def sharded_layouts(chunk: nn.Module) -> tuple[dict[int, Layout], str]:
    """By address of the values; none where the model cannot say, with a sentence if it fails to."""
    if not hasattr(chunk, "sharded_state_dict"):
        return {}, ""
    try:
        found = chunk.sharded_state_dict()  # type: ignore[operator]
    except Exception as error:  # noqa: BLE001  (the user's code, asked for no purpose of the user's)
        why = f"{type(error).__name__}: {error}"
        return {}, f"layouts are not checked against sharded_state_dict, which failed: {why}"
    layouts: dict[int, Layout] = {}
    for entry in _leaves(found):
        data = getattr(entry, "data", None)
        if not isinstance(data, torch.Tensor):
            continue
        layout = _layout(entry, data)
        if layout is not None and layout.local_shape == tuple(data.shape):
            layouts[data.data_ptr()] = layout
    return layouts, ""


def used_layout(known: Layout | None, told: Layout | None) -> Layout | None:
    """What classes and attributes say counts, and of what they leave open what the dict says.

    They leave open parameters that they do not know, and whether one that is split consists of
    sections, each split by itself. Whole is what the dict says by default too.
    """
    if known is None:
        return None if told is None or told.is_full else told
    return told if told is not None and _has_sections_of(told, known) else known


def disagreements(
    parameters: Sequence[tuple[Parameter, Layout | None]], sharded: Mapping[int, Layout]
) -> Iterator[str]:
    """A sentence for each parameter that the model shards otherwise than it is laid out here."""
    for parameter, used in parameters:
        told = sharded.get(parameter.tensor.data_ptr())
        if told is not None and used is not None and told != used:
            yield (
                f"{display_module(parameter.module)}.{parameter.name} is laid out as {used} of "
                f"{list(used.shape)}, but sharded_state_dict says {told} of {list(told.shape)}"
            )


def _has_sections_of(told: Layout, known: Layout) -> bool:
    """Whether both split the same dim into as large parts, one of them in several runs."""
    if (told.shape, told.local_shape) != (known.shape, known.local_shape):
        return False
    differing = [(t, k) for t, k in zip(told.runs, known.runs, strict=True) if t != k]
    return len(differing) == 1 and len(differing[0][0]) > len(differing[0][1]) == 1


def _leaves(found: Any) -> Iterator[Any]:
    if isinstance(found, Mapping):
        for value in found.values():
            yield from _leaves(value)
    elif isinstance(found, (list, tuple)):
        for value in found:
            yield from _leaves(value)
    else:
        yield found


def _layout(entry: Any, data: torch.Tensor) -> Layout | None:
    """Layers and experts are dims in front of the parameter's own."""
    build = getattr(entry, "build", None)
    parts = list(_leaves(build())) if callable(build) else [entry]
    dims = data.dim()
    if not all(_is_plain(part, dims) for part in parts):
        return None
    keys = {(getattr(part, "key", None), tuple(part.global_shape)) for part in parts}
    return _pieces(parts, dims) if len(keys) == 1 else _sections(parts, data)


def _pieces(parts: Sequence[Any], dims: int) -> Layout:
    """Pieces of one tensor of the checkpoint."""
    whole = tuple(parts[0].global_shape[-dims:])
    runs = []
    for dim in range(dims):
        at = [Run(part.global_offset[-dims + dim], part.local_shape[dim]) for part in parts]
        runs.append(at if len(set(at)) > 1 else at[:1])
    return Layout(shape=whole, runs=tuple(tuple(of_dim) for of_dim in runs))


def _sections(parts: Sequence[Any], data: torch.Tensor) -> Layout | None:
    """Tensors of their own in the checkpoint, which stand in the parameter side by side."""
    pieces = [_pieces([part], data.dim()) for part in parts]
    dim = next((dim for dim in range(data.dim()) if _are_side_by_side(parts, data, dim)), None)
    if dim is None:
        return None
    sizes = [piece.shape[dim] for piece in pieces]
    starts = accumulate(sizes, initial=0)
    runs = [
        Run(start + (run.start or 0), run.length)
        for start, piece in zip(starts, pieces, strict=False)
        for run in piece.runs[dim]
    ]
    return part_of(pieces[0], dim, Layout(shape=(sum(sizes),), runs=(tuple(runs),)))


def _are_side_by_side(parts: Sequence[Any], data: torch.Tensor, dim: int) -> bool:
    """Whether they are the parameter's own memory, all of it, in this order along the dim."""
    sizes = [part.local_shape[dim] for part in parts]
    if sum(sizes) != data.shape[dim]:
        return False
    return all(
        part.data.data_ptr() == here.data_ptr() and part.data.shape == here.shape
        for part, here in zip(parts, data.split(sizes, dim), strict=True)
    )


def _is_plain(part: Any, dims: int) -> bool:
    is_flat = getattr(part, "flattened_range", None) is not None
    has_data = isinstance(getattr(part, "data", None), torch.Tensor)
    return has_data and not is_flat and len(getattr(part, "local_shape", ())) == dims > 0


class ParameterTable:
    """The parameters of this rank, chunk by chunk, and what is known of each."""

    def __init__(
        self,
        chunks: Sequence[nn.Module],
        ranks: Ranks,
        sections: Mapping[int, int],
        experts: Mapping[int, tuple[Any, int | None]],
    ) -> None:
        self._chunks = chunks
        self._ranks = ranks
        self._sections = sections
        self._experts = experts
        seen: set[int] = set()
        found = {id(chunk): list(self._of_chunk(chunk, seen)) for chunk in chunks}
        pairs = [pair for of_chunk in found.values() for pair in of_chunk]
        self.all = [parameter for parameter, _ in pairs]
        self.of_chunk = {at: [parameter for parameter, _ in pairs] for at, pairs in found.items()}
        self.layouts, self.problems = _reconciled(pairs, chunks)
        self._by_name = {(p.module, p.name): p.tensor for p in self.all}
        self._of_layers = {id(p) for chunk in chunks for p in _parameters_of_layers(chunk)}
        self._of_heads = {id(p) for chunk in chunks for p in _parameters_of_heads(chunk)}

    def layout(self, parameter: nn.Parameter) -> Layout | None:
        return self.layouts[id(parameter)]

    def local_gradient_layout(self, module: str, name: str) -> Layout | None:
        """The layout of a gradient before any reduction, where it is known."""
        parameter = self._by_name[module, name]
        layout = self.layout(parameter)
        partial = ["cp"] if self._ranks.cp[1] > 1 else []
        partial += self.axes_summed_last(module, name)
        if not partial:
            return layout
        return (layout or Layout.full(parameter.shape)).summed_over(*partial)

    def axes_summed_last(self, module: str, name: str) -> list[str]:
        """Over which a gradient is summed when it is already summed over data and context."""
        parameter = self._by_name[module, name]
        axes = ["tp"] if self._sees_a_part(parameter) else []
        if (module, name) == parameter_name(self._chunks[0], "output_layer", "weight"):
            axes += [EMBEDDING_AXIS] if embedding_end(self._chunks) is not None else []
        return axes

    def _sees_a_part(self, parameter: nn.Parameter) -> bool:
        """Of the heads, or of the sequence: layers do, also where the mark for it was forgotten."""
        if self.layout(parameter) is not None or self._ranks.tp[1] == 1:
            return False
        is_marked = getattr(parameter, "sequence_parallel", False)
        is_scattered = is_marked or id(parameter) in self._of_layers
        return id(parameter) in self._of_heads or (self._ranks.sequence_parallel and is_scattered)

    def _of_chunk(
        self, chunk: nn.Module, seen: set[int]
    ) -> Iterator[tuple[Parameter, Layout | None]]:
        for path, module in walk([chunk]):
            for name, tensor in module.named_parameters(recurse=False):
                if id(tensor) not in seen:
                    seen.add(id(tensor))
                    yield self._described(chunk, path, module, name, tensor)

    def _described(
        self, chunk: nn.Module, path: str, module: nn.Module, name: str, tensor: nn.Parameter
    ) -> tuple[Parameter, Layout | None]:
        owner, known = parameter_name(chunk, path, name)
        layer, expert = self._experts.get(id(module), (None, None))
        if layer is not None and expert is None:
            known = with_global_number(known, layer)
        sections = self._sections.get(id(module), 1)
        is_expert = layer is not None
        layout = parameter_layout(
            module, name, tensor.shape, self._ranks, sections, is_expert=is_expert
        )
        users = tied_users(chunk, owner)
        return Parameter(module=owner, name=known, tensor=tensor, users=users), layout


def _reconciled(
    pairs: Sequence[tuple[Parameter, Layout | None]], chunks: Sequence[nn.Module]
) -> tuple[dict[int, Layout | None], list[str]]:
    """The layout of each parameter, by its id, and what the models' own dicts say otherwise."""
    told = [sharded_layouts(chunk) for chunk in chunks]
    sharded = {at: layout for layouts, _ in told for at, layout in layouts.items()}
    used = [(p, used_layout(known, sharded.get(p.tensor.data_ptr()))) for p, known in pairs]
    problems = [problem for _, problem in told if problem]
    problems += disagreements(used, sharded)
    return {id(p.tensor): layout for p, layout in used}, problems


def _parameters_of_layers(chunk: nn.Module) -> Iterator[nn.Parameter]:
    """Those of every stack of layers; an embedding or a projection before it sees all tokens."""
    for module in chunk.modules():
        if isinstance(getattr(module, "layers", None), nn.ModuleList):
            yield from module.parameters()


def _parameters_of_heads(chunk: nn.Module) -> Iterator[nn.Parameter]:
    """Those of norms that every head goes through, of which each rank has its own."""
    for module in chunk.modules():
        names = next((names for kind, names in _HEAD_NORMS if isinstance(module, kind)), ())
        for norm in (getattr(module, name, None) for name in names):
            yield from norm.parameters() if isinstance(norm, nn.Module) else ()
