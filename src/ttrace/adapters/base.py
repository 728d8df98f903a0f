"""The questions a framework's adapter answers about this rank.

Capture asks them and knows no framework; each adapter answers for one framework and knows no stage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import nn
from torch.optim import Optimizer

from ttrace.core.ids import Kind
from ttrace.core.layout import Layout


@dataclass(frozen=True, slots=True, kw_only=True)
class Coordinates:
    """Where this rank stands: its coordinates on the mesh axes and among data-parallel ranks."""

    rank: int
    world_size: int
    axes: dict[str, tuple[int, int]]  # axis -> (my index, size)
    batch: tuple[int, int] | None  # (my index, count), None when the framework does not say
    # Over how many ranks gradients are averaged, 1 where they are summed; None: it does not say.
    loss_parts: int | None = None
    vocabulary: tuple[str, ...] = ()  # modules with a row for each token, padded as layouts need


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One parameter under its canonical name.

    `users` are classes of modules that use it, where this rank does not hold them all.
    """

    module: str
    name: str
    tensor: nn.Parameter
    users: tuple[type, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SentTokens:
    """Rows of a tensor that belong to the samples of one rank, and where they stand among them.

    `layout` is that of a dense tensor with a place for each of them; other places are zero.
    """

    origin: int  # the rank whose samples they are
    rows: torch.Tensor  # which rows
    places: torch.Tensor  # where in the dense tensor, its leading dims flattened
    layout: Layout


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundarySpec:
    """Where a tensor at a module's boundary belongs, as far as the framework knows.

    `dims` is the order of dims to record in, where layouts of the model differ in it. `layout` may
    then give the local tensor another shape of as many elements: it is recorded in that.
    """

    slot: str
    dims: tuple[int, ...] = ()
    layout: Layout | None = None
    batch_dim: int | None = None  # of the samples; NO_BATCH where there is none, None: not known
    rows: tuple[
        SentTokens, ...
    ] = ()  # the tensor's first dim, where tokens were sent between ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterPart:
    """A part of something that belongs to a parameter, as this rank holds it."""

    slot: str
    tensor: torch.Tensor
    layout: Layout | None = None


NO_BATCH = -1
Aside = Callable[[str, torch.Tensor, Layout | None], None]  # slot, value, layout
AfterReduction = Callable[[Sequence[Parameter]], None]
BeforeClip = Callable[[torch.Tensor | None], torch.Tensor | None]
BeforeReduction = Callable[[Iterable[nn.Parameter]], None]
AroundBackward = Callable[[Sequence[torch.Tensor]], AbstractContextManager[None]]


class Adapter(Protocol):
    """Answers for one framework."""

    name: str

    def coordinates(self) -> Coordinates:
        """This rank's coordinates."""

    def modules(self) -> Iterator[tuple[str, nn.Module]]:
        """Canonical path and module of everything whose calls are to be recorded, root first.

        A rank that holds several chunks of a model has several roots, all with an empty path.
        """

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

    def parts(self, kind: Kind, parameter: Parameter) -> Iterator[ParameterPart]:
        """What this rank holds of a parameter, one of its gradients, or its state."""

    def local_gradient_layout(self, module: str, name: str) -> Layout | None:
        """The layout of a parameter's gradient before any reduction, where it is known."""

    def optimizers(self, given: Sequence[Any]) -> Sequence[Optimizer]:
        """The torch optimizers behind what a script gave as its optimizer."""

    def watch_clipping(self, before: BeforeClip) -> AbstractContextManager[None]:
        """Calls `before(norm)` when gradients are clipped by code of the framework's own."""

    def watch_backward(self, around: AroundBackward) -> AbstractContextManager[None]:
        """Holds `around(losses)` while the framework runs backward past torch.autograd.backward."""

    def watch_accumulation(self, before: BeforeReduction) -> AbstractContextManager[None]:
        """Calls `before(parameters)` when their gradients, accumulated, are about to be reduced."""

    def boundary(
        self, module: nn.Module, kind: Kind, slot: str, tensor: torch.Tensor
    ) -> BoundarySpec | None:
        """Where an input, an output, or the gradient of one belongs; None: leave it out."""

    def watch_reduction(self, after: AfterReduction) -> AbstractContextManager[None]:
        """Calls `after` once gradients are summed over data-parallel ranks, where sums follow."""

    def watch_losses(self, aside: Aside) -> AbstractContextManager[None]:
        """Calls `aside` for losses that the module which runs now makes but does not return."""

    def to_local(self, tensor: torch.Tensor) -> tuple[torch.Tensor, Layout | None]:
        """The plain local tensor, and its layout if the tensor itself knows it."""

    def loss_layout(self) -> Layout | None:
        """The layout of a microbatch's loss, where it is known: a term of a sum over some axis."""

    def reduced(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor with its pending reductions done: a collective of all ranks that hold it."""

    def wrap_like(self, local: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        """The inverse of to_local: a tensor of the kind of `like` around new local values."""

    def inherit(self, tensor: torch.Tensor, source: torch.Tensor) -> None:
        """`tensor` took the place of `source`: what is known of its layout goes on to hold."""

    def notes(self) -> Sequence[str]:
        """What a person should know of this rank's layouts before any step."""

    def tracking(self) -> AbstractContextManager[None]:
        """Held while a step is traced, for adapters that must watch their framework."""
