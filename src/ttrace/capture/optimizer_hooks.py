"""Hooks around the steps of optimizers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from ttrace.capture.guard import Guard, Hook


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
