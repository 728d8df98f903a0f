"""Hooks around the steps of optimizers, and around the closures that these are given.

A closure makes the gradients inside of the optimizer's step. Lightning gives one always; LBFGS
evaluates it several times. Only the first evaluation starts from the parameters of the step, so
that is the one that can be compared with the reference's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from ttrace.adapters.base import Adapter, Parameter
from ttrace.adapters.patching import TellFault, unharmed
from ttrace.capture.guard import Guard, Hook

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
Closure = Callable[[], Any]


class OptimizerHooks:
    """Calls `before(optimizer, args, kwargs)` and `after(...)` around every step."""

    def __init__(
        self,
        guard: Guard,
        optimizers: Iterable[Optimizer],
        *,
        before: Callable[..., Any],
        after: Callable[..., None],
    ) -> None:
        self._after: dict[int, Any] = {}  # handles, by optimizer
        for optimizer in optimizers:
            hook = Hook(guard, "the begin of an update", before)
            guard.handles.add(optimizer.register_step_pre_hook(hook))
            hook = Hook(guard, "the end of an update", after)
            self._after[id(optimizer)] = handle = optimizer.register_step_post_hook(hook)
            guard.handles.add(handle)

    def put_last(self, optimizer: Optimizer) -> None:
        """After the update of this optimizer all hooks may be taken off.

        It goes through its hooks then: only the last can go without those that would follow.
        """
        handle = self._after.get(id(optimizer))
        if isinstance(handle, RemovableHandle):
            hooks = handle.hooks_dict_ref()
            if hooks is not None and handle.id in hooks:
                hooks.move_to_end(handle.id)


def select_parameters(
    adapter: Adapter, optimizer: Optimizer, *, is_alone: bool
) -> Sequence[Parameter]:
    """Return what an optimizer updates: all where it is alone, or works on tensors of its own."""
    everything = [p for p in adapter.parameters() if not adapter.is_updated_later(p.tensor)]
    if is_alone:
        return everything
    ids = {id(tensor) for group in optimizer.param_groups for tensor in group["params"]}
    return [p for p in everything if id(p.tensor) in ids] or everything


def exchange_closure(
    args: tuple[Any, ...], kwargs: dict[str, Any], exchange: Callable[[Closure], Closure]
) -> Arguments | None:
    """The arguments of an optimizer's step with another closure; None where it has none.

    The first argument is the optimizer itself.
    """
    if len(args) > 1 and args[1] is not None:
        return (args[0], exchange(args[1]), *args[2:]), kwargs
    if kwargs.get("closure") is not None:
        return args, {**kwargs, "closure": exchange(kwargs["closure"])}
    return None


def watched_closure(
    closure: Closure,
    *,
    after_first: Callable[[], None],
    around_others: Callable[[], AbstractContextManager[None]],
    told: TellFault,
) -> Closure:
    """The closure, with something to do once it has made the gradients of this step."""
    evaluations = 0

    def evaluate(original: Closure) -> Any:
        nonlocal evaluations
        evaluations += 1
        if evaluations > 1:
            with around_others():
                return original()
        result = original()
        after_first()
        return result

    return partial(unharmed, told, closure, evaluate)
