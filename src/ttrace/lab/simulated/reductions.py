"""Sums of what all ranks hold, in the order in which gloo adds them: bit for bit the same.

Gloo cuts a tensor into as many chunks as there are ranks. Chunk c travels down the ring, from rank
c - 1 by c - 2 to c, and each rank adds its own. The bounds of chunks follow from how gloo cuts
them further, into segments that are sent while others are added.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch.distributed import ReduceOp

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


def gloo_reduced(tensors: Sequence[torch.Tensor], op: object) -> torch.Tensor:
    """What an all_reduce gives, of the tensors of ranks 0, 1, ...; flat."""
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
