"""What every architecture of the grid answers: a model, a batch, a loss, and where it can run.

Enters: a case. Leaves: modules and tensors on the CPU, the same on every rank. An architecture
knows nothing of layouts, except that it says which of them do the same as one process.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.clean.case import Case
from zoo.clean.words import LayoutName

VOCAB = 256  # chosen small: rows and widths are what the grid varies
CLASSES = 16  # chosen small

_DATA: tuple[LayoutName, ...] = ("ddp2", "ddp4", "fsdp2")
_ACCUMULATING: tuple[LayoutName, ...] = ("accumulate2", "accumulate4", "ddp2-accumulate2")
# Where a loss sees the whole batch at once, microbatches are another training.
WHOLE_BATCH: tuple[LayoutName, ...] = _DATA
EVERY_SPLIT: tuple[LayoutName, ...] = (*_DATA, *_ACCUMULATING)


@dataclass(frozen=True, slots=True)
class Batch:
    """What goes into the model, and what its output is compared with; samples come first."""

    inputs: tuple[Tensor, ...]
    target: Tensor

    def map(self, change: Callable[[Tensor], Tensor]) -> Batch:
        return Batch(tuple(map(change, self.inputs)), change(self.target))

    def chunk(self, parts: int, dim: int = 0) -> list[Batch]:
        """Equal parts."""
        return [
            self.map(lambda tensor, part=part: tensor.chunk(parts, dim)[part])  # type: ignore[misc]
            for part in range(parts)
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """`loss` is a mean over samples, so that the mean over equal parts is that of the whole."""

    name: str
    build: Callable[[Case], nn.Module]
    batch: Callable[[Case], Batch]
    loss: Callable[[Any, Tensor], Tensor]
    layouts: tuple[LayoutName, ...] = EVERY_SPLIT
    is_image: bool = False  # positions are a square number
    longest: int = 128  # positions of a sample in a sweep over rows: attention is quadratic


def cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(at_least_fp32(logits.flatten(0, -2)), target.flatten())


def squared_error(output: Tensor, target: Tensor) -> Tensor:
    return F.mse_loss(at_least_fp32(output), at_least_fp32(target))


def at_least_fp32(tensor: Tensor) -> Tensor:
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def side(case: Case) -> int:
    """Pixels along an image."""
    found = round(case.positions**0.5)
    if found * found != case.positions:
        raise ValueError(f"{case.positions} pixels are not a square: {case.key}")
    return found


def tokens(case: Case) -> Batch:
    """Token ids and their places, and the tokens that follow."""
    drawn = torch.randint(VOCAB, (case.batch, case.positions + 1))
    return Batch((drawn[:, :-1].contiguous(), places(case)), drawn[:, 1:].contiguous())


def places(case: Case) -> Tensor:
    return torch.arange(case.positions).expand(case.batch, -1).contiguous()


def vectors(case: Case) -> Batch:
    """One vector a position, and a class for each."""
    shape = (case.batch, case.positions)
    return Batch((torch.randn(*shape, case.width),), torch.randint(CLASSES, shape))


def images(case: Case) -> Batch:
    """Three colours, and one class an image."""
    shape = (case.batch, 3, side(case), side(case))
    return Batch((torch.randn(shape),), torch.randint(CLASSES, (case.batch,)))
