"""Annotations: the user says how a module's tensors are split where shapes leave it open.

    split = ttrace.Split.over(tp_group, dim=2)
    ttrace.annotate(attention.core, inputs={"0": split, "1": split}, outputs={"0": split})

An annotation is believed before anything that an adapter reads or infers. Slots are named as in
ids: the number of a positional argument or output, the name of a keyword argument.
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
    """This rank holds chunk `index` of `count` of a dim; a count of 1: the whole."""

    dim: int
    index: int
    count: int

    def __post_init__(self) -> None:
        if not 0 <= self.index < self.count:
            raise UsageError(
                f"a split needs an index from 0 to count - 1, found index {self.index} of "
                f"count {self.count}"
            )

    @classmethod
    def over(cls, group: dist.ProcessGroup, *, dim: int) -> Split:
        """The split into even chunks, in the order of the group's ranks."""
        return cls(dim=dim, index=dist.get_rank(group), count=dist.get_world_size(group))

    def layout(self, local_shape: Sequence[int]) -> Layout:
        """The layout of a local tensor of this shape within its microbatch."""
        dim = self.dim % len(local_shape)
        whole = [*local_shape]
        whole[dim] *= self.count
        return Layout.full(whole).shard(dim, self.index, self.count)


def annotate(
    module: nn.Module,
    *,
    inputs: Mapping[str, Split] | None = None,
    outputs: Mapping[str, Split] | None = None,
) -> None:
    """Say how inputs and outputs of a module, and with them their gradients, are split."""
    known = {(Kind.INPUT, slot): split for slot, split in (inputs or {}).items()}
    known |= {(Kind.OUTPUT, slot): split for slot, split in (outputs or {}).items()}
    module.__dict__[_ATTRIBUTE] = module.__dict__.get(_ATTRIBUTE, {}) | known


def boundary_of(
    adapter: Adapter, module: nn.Module, kind: Kind, slot: str, tensor: torch.Tensor
) -> BoundarySpec | None:
    """A tensor belongs where its annotation says, or else where the adapter does."""
    annotated: Mapping[tuple[Kind, str], Split] = module.__dict__.get(_ATTRIBUTE, {})
    split = annotated.get((kind.forward, slot))
    if split is None:
        return adapter.boundary(module, kind, slot, tensor)
    return BoundarySpec(slot=slot, layout=split.layout(adapter.to_local(tensor)[0].shape))
