"""Annotations: the user says how a module's tensors are split where shapes leave it open.

    split = ttrace.Split.over(tp_group, dim=2)
    ttrace.annotate(attention.core, inputs={"0": split, "1": split}, outputs={"0": split})
    qkv = ttrace.Split.over(tp_group, dim=0, sections=(64, 16, 16))
    ttrace.annotate(attention.qkv, parameters={"weight": qkv, "bias": qkv})

An annotation is believed before anything that an adapter reads or infers. Slots are named as in
ids: the number of a positional argument or output, the name of a keyword argument, the name of a
parameter of the module itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn

from ttrace.adapters.base import Adapter, BoundarySpec
from ttrace.core.ids import Kind
from ttrace.core.layout import Layout
from ttrace.errors import UsageError

_ATTRIBUTE = "_ttrace_annotation"


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """This rank holds chunk `index` of `count` of a dim; a count of 1: the whole.

    `sections` are the sizes, in the whole tensor, of what is fused in that dim (queries, keys and
    values): the rank then holds its chunk of each, side by side.
    """

    dim: int
    index: int
    count: int
    sections: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not 0 <= self.index < self.count:
            raise UsageError(
                f"a split needs an index from 0 to count - 1, found index {self.index} of "
                f"count {self.count}"
            )

    @classmethod
    def over(cls, group: dist.ProcessGroup, *, dim: int, sections: Sequence[int] = ()) -> Split:
        """The split into even chunks, in the order of the group's ranks."""
        return cls(
            dim=dim,
            index=dist.get_rank(group),
            count=dist.get_world_size(group),
            sections=tuple(sections),
        )

    def layout(self, local_shape: Sequence[int]) -> Layout:
        """The layout of a local tensor of this shape within its microbatch."""
        dim = self.dim % len(local_shape)
        whole = [*local_shape]
        whole[dim] *= self.count
        if self.sections:
            return Layout.full(whole).interleaved(dim, self.sections, self.index, self.count)
        return Layout.full(whole).shard(dim, self.index, self.count)


def annotate(
    module: nn.Module,
    *,
    inputs: Mapping[str, Split] | None = None,
    outputs: Mapping[str, Split] | None = None,
    parameters: Mapping[str, Split] | None = None,
) -> None:
    """Say how inputs, outputs and parameters of a module, and their gradients, are split."""
    known = {(Kind.INPUT, slot): split for slot, split in (inputs or {}).items()}
    known |= {(Kind.OUTPUT, slot): split for slot, split in (outputs or {}).items()}
    module.__dict__[_ATTRIBUTE] = module.__dict__.get(_ATTRIBUTE, {}) | known
    own = dict(module.named_parameters(recurse=False))
    for name, split in (parameters or {}).items():
        if name not in own:
            raise UsageError(
                f"{type(module).__name__} has no parameter {name!r} of its own, only "
                f"{', '.join(own) or 'none'}: annotate the module that holds it"
            )
        split.layout(own[name].shape)  # refused here rather than in the middle of a step
        setattr(own[name], _ATTRIBUTE, split)


def annotated_layout(parameter: torch.Tensor, held: torch.Tensor) -> Layout | None:
    """Where what a rank holds of a parameter, its gradient or its state belongs, if annotated."""
    split: Split | None = getattr(parameter, _ATTRIBUTE, None)
    return split.layout(held.shape) if split and held.shape == parameter.shape else None


def boundary_of(
    adapter: Adapter, module: nn.Module, kind: Kind, slot: str, tensor: torch.Tensor
) -> BoundarySpec | None:
    """A tensor belongs where its annotation says, or else where the adapter does."""
    annotated: Mapping[tuple[Kind, str], Split] | None = module.__dict__.get(_ATTRIBUTE)
    split = annotated.get((kind.forward, slot)) if annotated else None
    if split is None:
        return adapter.boundary(module, kind, slot, tensor)
    return BoundarySpec(slot=slot, layout=split.layout(adapter.to_local(tensor)[0].shape))
