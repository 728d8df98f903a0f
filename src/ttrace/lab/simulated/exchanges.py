"""Collectives, once all ranks have come: from what each brought into the tensors of each.

    do = all_reduce(ReduceOp.SUM)
    do([[tensor of rank 0], [tensor of rank 1]])

Enters: what ranks 0, 1, ... of a group brought. Leaves: their outputs are filled. Where gloo would
read what is not there, it raises.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch.distributed import ReduceOp
from torch.utils import _pytree as pytree

Do = Callable[[Sequence[Any]], None]
_SEGMENT_BYTES = 1 << 20  # gloo's: the most that it sends at once
_PER_RANK = 2  # gloo's: the fewest segments of a chunk, one travels while the other is added

Combine = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
_COMBINE: dict[object, Combine] = {
    ReduceOp.SUM: torch.add,
    ReduceOp.AVG: torch.add,
    ReduceOp.PRODUCT: torch.mul,
    ReduceOp.MIN: torch.minimum,
    ReduceOp.MAX: torch.maximum,
    ReduceOp.BAND: torch.bitwise_and,
    ReduceOp.BOR: torch.bitwise_or,
    ReduceOp.BXOR: torch.bitwise_xor,
}


def require_cpu(given: Any) -> None:
    """What a rank brings must lie in the memory that all share."""
    for tensor in pytree.tree_leaves(given):
        if isinstance(tensor, torch.Tensor) and tensor.device.type != "cpu":
            raise RuntimeError(
                f"simulated ranks compute on the CPU; found a tensor on {tensor.device}. Build the "
                "model on the CPU, or run the ranks as processes (simulated=False)"
            )


def nothing(given: Sequence[Any]) -> None:
    """A barrier."""


def all_reduce(op: object) -> Do:
    def do(given: Sequence[Sequence[torch.Tensor]]) -> None:
        """Several tensors are one to gloo, which shifts the bounds of its chunks."""
        total = gloo_reduced(_alike(given), op)
        for tensors in given:
            _spread(total, tensors)

    return do


def reduce(op: object, root: int) -> Do:
    def do(given: Sequence[Sequence[torch.Tensor]]) -> None:
        _spread(gloo_reduced(_alike(given), op), given[root])

    return do


def broadcast(root: int) -> Do:
    def do(given: Sequence[Sequence[torch.Tensor]]) -> None:
        for rank, tensors in enumerate(given):
            if rank != root:
                for target, source in zip(tensors, given[root], strict=True):
                    _fill(target, source)

    return do


def all_gather(given: Sequence[tuple[Sequence[torch.Tensor], torch.Tensor]]) -> None:
    for outputs, _ in given:
        for target, (_, source) in zip(outputs, given, strict=True):
            _fill(target, source)


def gather(root: int) -> Do:
    def do(given: Sequence[tuple[Sequence[torch.Tensor], torch.Tensor]]) -> None:
        for target, (_, source) in zip(given[root][0], given, strict=True):
            _fill(target, source)

    return do


def scatter(root: int) -> Do:
    def do(given: Sequence[tuple[torch.Tensor, Sequence[torch.Tensor]]]) -> None:
        for (target, _), source in zip(given, given[root][1], strict=True):
            _fill(target, source)

    return do


def reduce_scatter(op: object) -> Do:
    """Gloo reduces the whole tensor, and each rank takes its part."""

    def do(given: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
        total = gloo_reduced(_alike([[source] for _, source in given]), op)
        for (target, _), part in zip(given, total.chunk(len(given)), strict=True):
            _fill(target, part)

    return do


def reduce_scatter_list(op: object) -> Do:
    """Of a list of tensors gloo reduces one after the other."""

    def do(given: Sequence[tuple[torch.Tensor, Sequence[torch.Tensor]]]) -> None:
        for rank, (target, _) in enumerate(given):
            _fill(target, gloo_reduced(_alike([[sources[rank]] for _, sources in given]), op))

    return do


def all_to_all(given: Sequence[tuple[Sequence[torch.Tensor], Sequence[torch.Tensor]]]) -> None:
    for receiver, (outputs, _) in enumerate(given):
        for target, (_, sources) in zip(outputs, given, strict=True):
            _fill(target, sources[receiver])


def _alike(given: Sequence[Sequence[torch.Tensor]]) -> list[torch.Tensor]:
    """The tensors of each rank as one, which must be as large on all of them."""
    joined = [torch.cat([tensor.detach().reshape(-1) for tensor in tensors]) for tensors in given]
    forms = {(tensor.numel(), tensor.dtype) for tensor in joined}
    if len(forms) > 1:
        found = "; ".join(
            f"rank {rank} of the group brought {tensor.numel()} of {tensor.dtype}"
            for rank, tensor in enumerate(joined)
            if rank == 0 or (tensor.numel(), tensor.dtype) != (joined[0].numel(), joined[0].dtype)
        )
        raise RuntimeError(f"a reduction needs tensors of one size and dtype: {found}")
    return joined


def _spread(total: torch.Tensor, tensors: Sequence[torch.Tensor]) -> None:
    sizes = [tensor.numel() for tensor in tensors]
    for target, part in zip(tensors, total.split(sizes), strict=True):
        _fill(target, part)


def _fill(target: torch.Tensor, source: torch.Tensor) -> None:
    if target.numel() != source.numel() or target.dtype != source.dtype:
        raise RuntimeError(
            f"a collective brings {source.numel()} of {source.dtype}, and the tensor that is to "
            f"take them has {target.numel()} of {target.dtype}"
        )
    target.detach().copy_(source.detach().reshape(target.shape))


def gloo_reduced(tensors: Sequence[torch.Tensor], op: object) -> torch.Tensor:
    """What an all_reduce gives, of the tensors of ranks 0, 1, ...; flat, and bit for bit gloo's.

    Gloo cuts a tensor into as many chunks as there are ranks. Chunk c travels down the ring, from
    rank c - 1 by c - 2 to c, and each rank adds its own. The bounds of chunks follow from how gloo
    cuts them further, into segments that are sent while others are added.
    """
    combine = _COMBINE.get(op)
    if combine is None:
        raise NotImplementedError(f"simulated ranks do not reduce by {op}; gloo does not either")
    count = len(tensors)
    flat = torch.stack([tensor.detach().reshape(-1) for tensor in tensors])
    items = flat.shape[1]
    size = _chunk_items(items, flat.element_size(), count)
    held = F.pad(flat, (0, size * count - items)).view(count, count, size)  # rank, chunk, item
    chunks = torch.arange(count)
    result = held[(chunks - 1) % count, chunks]
    for step in range(2, count + 1):
        result = combine(result, held[(chunks - step) % count, chunks])
    result = result.view(-1)[:items]
    return result.div_(count) if op == ReduceOp.AVG else result


def _chunk_items(items: int, item_bytes: int, count: int) -> int:
    """Of each chunk but the last, which may have fewer, or none."""
    segments = max(-(-items // max(1, _SEGMENT_BYTES // item_bytes)), _PER_RANK * count)
    per_chunk = -(-segments // count)
    return -(-items // (per_chunk * count)) * per_chunk
