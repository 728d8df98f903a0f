"""Closures: what an optimizer is given to make its gradients itself, inside of its step.

Lightning gives one always; LBFGS evaluates it several times. Only the first evaluation starts from
the parameters of the step, so that is the one that can be compared with the reference's.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from ttrace.adapters.patching import TellFault, unharmed

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
Closure = Callable[[], Any]


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
