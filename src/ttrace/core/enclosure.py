"""An enclosure: a module, or the whole step, of which only what leaves it has an effect.

    Enclosure("layers.1.attention")     outputs, gradients of inputs and of weights leave it
    Enclosure(None)                     the step: the loss and the gradients of weights do

What two correct programs compute inside one may differ; what leaves it may not.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ttrace.core.ids import Kind, TensorId


@dataclass(frozen=True, slots=True, order=True)
class Enclosure:
    """A module by its canonical path; None is the step."""

    module: str | None

    def holds(self, id_: TensorId) -> bool:
        """Whether an activation, or the gradient of one, lies inside."""
        return id_.kind.is_activation and self.surrounds(id_.module)

    def surrounds(self, module: str) -> bool:
        """Whether a module lies inside: none does in itself, all do in the step."""
        if self.module is None:
            return True
        return module != self.module and (not self.module or module.startswith(f"{self.module}."))

    def leaves(self, id_: TensorId) -> bool:
        """Whether a tensor is one of those by which the inside has an effect."""
        if id_.kind is Kind.GRAD:
            return self.surrounds(id_.module) or id_.module == self.module
        if self.module is None:
            return id_.kind is Kind.LOSS
        return id_.module == self.module and id_.kind in (Kind.OUTPUT, Kind.GRAD_INPUT)


def enclosures_of(module: str) -> Iterable[Enclosure]:
    """All that a module lies in, the innermost first, the step last."""
    while module:
        module = module.rpartition(".")[0]
        yield Enclosure(module)
    yield Enclosure(None)


def is_enclosed(id_: TensorId, enclosures: Iterable[Enclosure]) -> bool:
    return any(enclosure.holds(id_) for enclosure in enclosures)
