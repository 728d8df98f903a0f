"""Tokens that a router sends elsewhere: a category of its own, not an error of the expert.

A router takes the largest of several numbers. Where two are nearly equal, rounding decides, and a
token goes to another expert: its row is then missing at one expert and new at another. The values
of such tokens say nothing of the experts, so they are left out of the comparison (measure.py), and
their number is judged by how many the noise of a perturbed reference moves.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from ttrace.core.ids import Kind, TensorId
from ttrace.core.logical import LogicalTensor


def moved_before(id_: TensorId, moved: Mapping[TensorId, int]) -> int:
    """How many tokens had moved on their way to the module of this tensor, or one around it.

    An isolated run can give a token the reference's values, but cannot bring it where it is not:
    those that moved outside are missing inside too.
    """
    names = id_.module.split(".")
    around = {".".join(names[:end]) for end in range(1, len(names))}
    around |= set() if id_.kind is Kind.INPUT else {id_.module}
    return max(
        (
            count
            for other, count in moved.items()
            if other.kind is Kind.INPUT and other.module in around and other.step == id_.step
        ),
        default=0,
    )


def token_dims(tensor: LogicalTensor) -> int:
    """The leading dims that say which token it is, where a router sent tokens to experts.

    Zeros stand for all other tokens. They are expert, position and sample, or the last two.
    """
    records = [record for piece in tensor.pieces for record in piece.records]
    routed = next((record for record in records if record.origin is not None), None)
    return 0 if routed is None or routed.batch_dim is None else routed.batch_dim + 1


def leave_out_moved(expected: torch.Tensor, found: torch.Tensor, token_dims: int) -> int:
    """Clear tokens that only one of the two has."""
    inner = tuple(range(token_dims, expected.ndim))
    here, there = (
        (values != 0).any(dim=inner, keepdim=True) if inner else values != 0
        for values in (expected, found)
    )
    moved = here != there
    for values in (expected, found):
        values.masked_fill_(moved, 0)
    return int(moved.sum())
