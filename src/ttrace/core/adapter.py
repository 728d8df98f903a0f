"""The questions a framework's adapter answers about this rank.

Capture asks them and knows no framework; each adapter answers for one framework and knows no stage.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import nn

from ttrace.core.layout import Layout


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where this rank stands: its coordinates on the mesh axes and among data-parallel ranks."""

    rank: int
    world_size: int
    axes: dict[str, tuple[int, int]]  # axis -> (my index, size)
    batch: tuple[int, int] | None  # (my index, count), None when the framework does not say


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One parameter under its canonical name."""

    module: str
    name: str
    tensor: nn.Parameter


class Adapter(Protocol):
    """Answers for one framework."""

    name: str

    def place(self) -> Place:
        """This rank's coordinates."""

    def modules(self) -> Iterator[tuple[str, nn.Module]]:
        """Canonical path and module of everything whose calls are to be recorded, root first."""

    def written_class(self, module: nn.Module) -> type:
        """The class a person wrote; frameworks put classes of their own in front of it."""

    def edges(self, module: nn.Module) -> tuple[bool, bool]:
        """Whether its inputs, and its outputs, are those of the module of its path.

        A pipeline cuts the model: only the first stage gets the model's inputs.
        """

    def microbatch(self) -> int | None:
        """The microbatch of the forward that runs now; None: every call of a root is the next."""

    def is_rehearsal(self) -> bool:
        """Whether modules run now only for the framework to learn the shapes of their outputs."""

    def parameters(self) -> Iterator[Parameter]:
        """Every parameter once, tied ones under their first name."""

    def main_grad(self, parameter: nn.Parameter) -> torch.Tensor | None:
        """The gradient that the optimizer will use."""

    def localise(self, tensor: torch.Tensor) -> tuple[torch.Tensor, Layout | None]:
        """The plain local tensor, and its layout if the tensor itself knows it."""

    def gradient_layout(self, tensor: torch.Tensor) -> Layout | None:
        """The layout of the gradient of this tensor, where the gradient itself does not know it."""

    def reduced(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor with its pending reductions done: a collective of all ranks that hold it."""

    def rewrap(self, local: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        """The inverse of localise: a tensor of the kind of `like` around new local values."""

    def inherit(self, tensor: torch.Tensor, source: torch.Tensor) -> None:
        """`tensor` took the place of `source`: what is known of its layout goes on to hold."""

    def tracking(self) -> AbstractContextManager[None]:
        """Held while a step is traced, for adapters that must watch their framework."""
