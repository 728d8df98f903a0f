"""The batch that all cases train on, and the loss.

Bugs in the scale of a loss show only when parts of the batch count differently: so every sample
has another number of labels, two of them 1 and 2.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

# chosen small: a step takes milliseconds, and everything divides by 2 ranks x 2 microbatches
VOCAB = 64
SEQUENCE = 16
LABELS = (16, 3, 11, 1, 7, 16, 2, 13)  # of each sample of the global batch
IGNORED = -100  # of torch's cross entropy
MAX_NORM = 0.1  # below every case's norm, so that clipping is active


@dataclass(frozen=True, slots=True)
class Microbatch:
    """Samples of one forward pass."""

    tokens: Tensor
    labels: Tensor

    @property
    def count(self) -> int:
        return int((self.labels != IGNORED).sum())


def is_parallel() -> bool:
    """False in the reference, which is the same code in a process group of one rank."""
    return dist.get_world_size() > 1


def microbatches(
    *, step: int = 0, parts: int = 1, part: int = 0, count: int | None = None
) -> list[Microbatch]:
    """This part of the step's batch: two microbatches, one in the reference unless told."""
    generator = torch.Generator().manual_seed(step)
    tokens = torch.randint(VOCAB, (len(LABELS), SEQUENCE + 1), generator=generator)
    labels = tokens[:, 1:].clone()
    for row, counted in zip(labels, LABELS, strict=True):
        row[counted:] = IGNORED
    count = count or (2 if is_parallel() else 1)
    pairs = zip(
        tokens[:, :-1].chunk(parts)[part].chunk(count),
        labels.chunk(parts)[part].chunk(count),
        strict=True,
    )
    return [Microbatch(*pair) for pair in pairs]


def total_count() -> int:
    """Labels of the global batch."""
    return sum(LABELS)


def summed_loss(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(
        logits.flatten(0, 1).float(), labels.flatten(), ignore_index=IGNORED, reduction="sum"
    )


def initialise(parameters: Iterable[tuple[str, nn.Parameter]], *, seed: int = 0) -> None:
    """The same values on every rank; biases and norm weights away from 0 and 1."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in parameters:
            noise = torch.randn(parameter.shape, generator=generator)
            if "norm" in name and name.endswith("weight"):
                parameter.copy_(1 + 0.1 * noise)  # 0.1: far above rounding, chosen arbitrarily
            elif name.endswith("bias"):
                parameter.copy_(0.1 * noise)
            else:
                parameter.copy_(noise * parameter.shape[-1] ** -0.5)
