"""Clipping: the norm that gradients are clipped by, and when that happens.

Notices when gradients are clipped or losses scaled, however a script imported the functions. The
norm is recorded; in an isolated run the reference's takes its place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CellType
from typing import Any

import torch
from torch.nn.utils import clip_grad

from ttrace.adapters.patching import patched
from ttrace.capture.context import StepContext
from ttrace.capture.overwrite import Overwriter
from ttrace.core.ids import Kind
from ttrace.core.record import CLIPPING

Told = Callable[[object], None]
Before = Callable[[torch.Tensor | None], torch.Tensor | None]


class Clipping:
    """The clipping of one step; `take_gradients` is called before it changes them."""

    def __init__(
        self,
        context: StepContext,
        overwriter: Overwriter | None,
        take_gradients: Callable[[], None],
        note: Callable[[str], None],
    ) -> None:
        self._context = context
        self._overwriter = overwriter
        self._take_gradients = take_gradients
        self._note = note
        self.happened = False
        self._norm: torch.Tensor | None = None

    def begin(self) -> None:
        self.happened = False
        self._norm = None

    def before(self, norm: torch.Tensor | None) -> torch.Tensor | None:
        """Record the norm and return the one to clip by.

        A norm may wait for its reduction, which torch would do next; it is done here instead.
        """
        whole = [norm]

        def take() -> None:
            if self._context.number is None:
                return
            self._context.places.meet(CLIPPING)
            whole[0] = None if norm is None else self._context.adapter.reduced(norm)
            self._take_norm(whole[0])
            whole[0] = self._isolated(whole[0])

        self._context.guard.recording("the gradient norm", take)
        return whole[0]

    def _take_norm(self, norm: torch.Tensor | None) -> None:
        self._take_gradients()
        self.happened = True
        if self._norm is None and norm is not None:
            self._norm = norm
            self._context.recorder.value(self._context.id("", Kind.GRAD_NORM), norm)
        elif norm is not None and not self._is_first(norm):
            # Parameters of several meshes are clipped in groups, by one common norm.
            self._note("gradients were clipped by several norms; the first is kept")

    def _isolated(self, norm: torch.Tensor | None) -> torch.Tensor | None:
        if norm is None or self._overwriter is None:
            return norm
        id_ = self._context.id("", Kind.GRAD_NORM)
        reference = self._overwriter.value(id_, 0, norm, id_, None)
        return norm if reference is None else reference

    def _is_first(self, norm: torch.Tensor) -> bool:
        if self._norm is None:
            return True
        first, second = (self._context.adapter.to_local(each)[0] for each in (self._norm, norm))
        return bool((first == second).all())


@contextmanager
def watch_clipping(before: Before, limit: Told) -> Iterator[None]:
    """While open, calls `before(total_norm)` right before gradients are scaled, or cut by value.

    The norm that it returns is the one that is used; by value there is none. `limit` is told the
    norm to clip to.
    """

    def by_norm(
        original: Any, parameters: Any, max_norm: Any, total_norm: Any, foreach: Any = None
    ) -> None:
        limit(max_norm)
        original(parameters, max_norm, before(total_norm), foreach)

    def by_value(original: Any, *args: Any, **kwargs: Any) -> None:
        before(None)
        original(*args, **kwargs)

    # clip_grad_norm_ ends in the first, and so do scripts that make the norm themselves.
    with (
        patched(_inside(clip_grad._clip_grads_with_norm_), "cell_contents", by_norm),
        patched(_inside(clip_grad.clip_grad_value_), "cell_contents", by_value),
    ):
        yield


@contextmanager
def watch_scaling(told: Told) -> Iterator[None]:
    """While open, calls `told` with the factor by which a GradScaler makes losses larger."""

    def scale(original: Any, scaler: torch.amp.GradScaler, *args: Any, **kwargs: Any) -> Any:
        told(scaler.get_scale())
        return original(scaler, *args, **kwargs)

    with patched(torch.amp.GradScaler, "scale", scale):
        yield


def _inside(function: Any) -> CellType:
    """The cell that holds what is inside torch's no_grad wrapper.

    A name in a module could be replaced too, but not the names under which others imported it.
    """
    cell: CellType = function.__closure__[function.__code__.co_freevars.index("func")]
    return cell
