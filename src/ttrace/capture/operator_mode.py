"""Modes that see every operator of a step, and what they tell of it when the run ends.

Enters: operators, as autograd and the run call them. Leaves: what they return. A function that
takes functions (`torch.cond`, `flex_attention` without a compiler) runs as a whole, and unseen.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from torch import Tensor, nn
from torch._ops import HigherOrderOperator
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode

from ttrace.adapters.patching import TellFault, unharmed
from ttrace.core.quantised import Quantising, Undone

_PLAIN = (Tensor, nn.Parameter)


class OperatorMode(TorchDispatchMode):
    """After a fault of ours, which is told, an operator runs as it is."""

    supports_higher_order_operators = True

    def __init__(self, told: TellFault | None = None) -> None:
        super().__init__()
        self._told = told

    @classmethod
    def is_infra_mode(cls) -> bool:
        """A compiled model stays compiled under this mode."""
        return True

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        given = kwargs or {}
        if isinstance(func, HigherOrderOperator):
            return func(*args, **given)
        return self._operate(func, types, args, given)

    @abstractmethod
    def _operate(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """What the operator returns."""

    def _guarded(
        self, func: Any, around: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """`around(func, ...)`, or the operator itself."""
        if self._told is None:
            return around(func, *args, **kwargs)
        return unharmed(self._told, func, around, *args, **kwargs)

    def is_needed(self, *, records: bool) -> bool:
        """Whether a step needs it, which is recorded or not."""
        return True

    def quantising(self) -> tuple[Quantising, ...] | None:
        """Modules in whose forward codes were made; None of a mode that does not look."""
        return None

    def rounds_updates(self) -> bool:
        """Whether an optimizer rounds by chance, as far as the mode looks for it."""
        return False

    def undone(self) -> tuple[Undone, ...]:
        """Quantisation that it took away."""
        return ()

    def notes(self, roots: Iterable[nn.Module] = ()) -> list[str]:
        """What a person should know of this run, and of the modules that ran."""
        return []


def are_fake(types: Sequence[type]) -> bool:
    """Shapes without values: DTensors ask them what a result looks like."""
    return any(issubclass(type_, FakeTensor) for type_ in types)


def are_plain(types: Sequence[type]) -> bool:
    """Operators on others become operations on the tensors inside of them first."""
    return all(type_ in _PLAIN for type_ in types)


def has_compiled(roots: Iterable[nn.Module]) -> bool:
    """Whether a module is compiled, whose operators no mode sees."""
    return any(_is_compiled(module) for root in roots for module in root.modules())


def _is_compiled(module: nn.Module) -> bool:
    wrapped = getattr(module, "_orig_mod", None)  # torch.compile(module)
    in_place = getattr(module, "_compiled_call_impl", None)  # module.compile()
    return wrapped is not None or in_place is not None
