"""What happens to parameters in a step: gradients after backward, norm, clipping, optimizer.

Enters: the moments at which a framework reduces, clips and updates. Leaves: records of parameters,
of their gradients at each of these moments, and of the optimizer's state. In an isolated run each
is overwritten with the reference's once it is recorded; in a perturbed run parameters have noise
until their gradients are taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch.optim import Optimizer

from ttrace.adapters.base import Parameter
from ttrace.capture.clipping import watch_clipping, watch_scaling
from ttrace.capture.context import StepContext
from ttrace.capture.hyperparameters import Hyperparameters
from ttrace.capture.noise import Noise
from ttrace.capture.overwrite import Overwriter
from ttrace.capture.regroup import Regrouping
from ttrace.capture.weights import WeightHooks
from ttrace.core.hyperparameter import CLIPPED_TO, LOSS_SCALE
from ttrace.core.ids import Kind

_MADE_NOISY = frozenset({Kind.REDUCED_GRAD, Kind.MAIN_GRAD, Kind.CLIPPED_GRAD})


class Update:
    """Records parameters and everything that belongs to them, around backward."""

    def __init__(
        self,
        context: StepContext,
        weights: WeightHooks,
        optimizers: Sequence[Any],
        *,
        noise: Noise | None,
        overwriter: Overwriter | None,
        regrouping: Regrouping | None = None,
    ) -> None:
        self.hyperparameters = Hyperparameters(context.adapter)
        self._context = context
        self._weights = weights
        self._optimizers = context.adapter.optimizers(optimizers)
        self._noise = noise
        self._overwriter = overwriter
        self._regrouping = regrouping
        self._restore: list[Callable[[], None]] = []
        self._accumulated: set[int] = set()
        self._updated: set[int] = set()
        self._gradients_taken = False
        self._clipped = self._clipped_taken = False
        self._norm: torch.Tensor | None = None
        self._handles = [
            handle
            for optimizer in self._optimizers
            for handle in (
                optimizer.register_step_pre_hook(self._before_update),
                optimizer.register_step_post_hook(self._after_update),
            )
        ]

    def begin(self) -> None:
        self._gradients_taken = False
        self._clipped = self._clipped_taken = False
        self._norm = None
        self._updated.clear()
        self._accumulated.clear()
        self._each_parameter(Kind.PARAM)
        note = partial(self.hyperparameters.of_modules, self._context.number or 0)
        self._context.recorder.guarded("the modules' numbers", note)
        if self._noise is not None:
            for parameter in self._context.adapter.parameters():
                key = f"step{self._context.number}/{parameter.module}:param.{parameter.name}"
                self._restore.append(self._noise.on_parameter(parameter.tensor, key))

    @contextmanager
    def watching(self) -> Iterator[None]:
        """While open, gradients are recorded when they are accumulated, reduced and clipped."""
        adapter = self._context.adapter
        with (
            watch_clipping(self._before_clipping, partial(self._note_number, CLIPPED_TO)),
            watch_scaling(partial(self._note_number, LOSS_SCALE)),
            adapter.watch_clipping(self._before_clipping),
            adapter.watch_accumulation(self._before_reduction),
            adapter.watch_reduction(partial(self._each_parameter, Kind.REDUCED_GRAD)),
        ):
            yield

    def end(self) -> None:
        """Record what the step left behind."""
        self._take_gradients()
        self._take_clipped()
        missing = len(self._optimizers) - len(self._updated)
        if missing:
            self._context.notes.append(
                f"step {self._context.number}: {missing} of {len(self._optimizers)} optimizers "
                "made no step inside tracer.step(), so there are no updated parameters to compare"
            )
        elif self._optimizers:
            self._each_parameter(Kind.OPTIMIZER)
            self._each_parameter(Kind.PARAM_AFTER)

    def restore(self) -> None:
        """Give parameters the values that they had before noise was added."""
        for restore in self._restore:
            restore()
        self._restore.clear()

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()

    def _note_number(self, name: str, value: object) -> None:
        note = partial(self.hyperparameters.of_step, self._context.number or 0, name, value)
        self._context.recorder.guarded(name, note)

    def _before_update(self, optimizer: Optimizer, *_: Any) -> None:
        if self._context.number is not None:
            note = partial(self.hyperparameters.of_optimizer, self._context.number, optimizer)
            self._context.recorder.guarded("the optimizer's numbers", note)
            self._take_gradients()
            self._take_clipped()
            self._tell_regrouping(is_updating=True)

    def _after_update(self, optimizer: Optimizer, *_: Any) -> None:
        if self._context.number is not None:
            self._updated.add(id(optimizer))
            self._tell_regrouping(is_updating=False)

    def _tell_regrouping(self, *, is_updating: bool) -> None:
        if self._regrouping is not None:
            self._regrouping.is_updating = is_updating

    def _take_gradients(self) -> None:
        """Record main gradients once a step, before clipping or the first optimizer step.

        All are reduced by then.
        """
        self.restore()
        if not self._gradients_taken:
            self._gradients_taken = True
            self._each_parameter(Kind.MAIN_GRAD)
            where = "parameters without a local gradient"
            self._context.recorder.guarded(where, self._note_unseen)

    def _note_unseen(self) -> None:
        adapter = self._context.adapter
        unseen = [
            f"{p.module}.{p.name}".lstrip(".")
            for p in adapter.parameters()
            if adapter.main_grad(p.tensor) is not None and not self._weights.has(p.module, p.name)
        ]
        if unseen:
            more = f" and {len(unseen) - 3} more" if len(unseen) > 3 else ""
            self._context.notes.append(
                f"step {self._context.number}: no local gradient was seen of "
                f"{', '.join(unseen[:3])}{more}, only the reduced one"
            )

    def _before_reduction(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        self._context.recorder.guarded(
            "accumulated gradients", lambda: self._take_accumulated(parameters)
        )

    def _take_accumulated(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        context, adapter = self._context, self._context.adapter
        reduced = {id(parameter) for parameter in parameters} - self._accumulated
        self._accumulated |= reduced
        for p in adapter.parameters():
            gradient = adapter.main_grad(p.tensor) if id(p.tensor) in reduced else None
            if gradient is not None:
                id_ = context.id(p.module, Kind.ACCUMULATED_GRAD, p.name)
                layout = adapter.local_gradient_layout(p.module, p.name)
                # A copy: the reduction changes it in place, which its object need not tell.
                context.recorder.value(id_, gradient.detach().clone(), layout=layout)

    def _before_clipping(self, norm: torch.Tensor | None) -> torch.Tensor | None:
        """Record the norm and return the one to clip by.

        A norm may wait for its reduction, which torch would do next; it is done here instead.
        """
        whole = [norm]

        def take() -> None:
            whole[0] = None if norm is None else self._context.adapter.reduced(norm)
            self._take_norm(whole[0])
            whole[0] = self._isolated_norm(whole[0])

        self._context.recorder.guarded("the gradient norm", take)
        return whole[0]

    def _take_norm(self, norm: torch.Tensor | None) -> None:
        self._take_gradients()
        first, self._clipped = not self._clipped, True
        if first:
            self._norm = norm
            if norm is not None:
                self._context.recorder.value(self._context.id("", Kind.GRAD_NORM), norm)
        elif not self._is_first_norm(norm):
            # Parameters of several meshes are clipped in groups, by one common norm.
            note = (
                f"step {self._context.number}: gradients were clipped by several norms; the first "
                "is kept"
            )
            self._context.notes += [] if note in self._context.notes else [note]

    def _isolated_norm(self, norm: torch.Tensor | None) -> torch.Tensor | None:
        if norm is None or self._overwriter is None:
            return norm
        id_ = self._context.id("", Kind.GRAD_NORM)
        reference = self._overwriter.value(id_, 0, norm, id_, None)
        return norm if reference is None else reference

    def _is_first_norm(self, norm: torch.Tensor | None) -> bool:
        if norm is None or self._norm is None:
            return norm is self._norm
        first, second = (self._context.adapter.to_local(each)[0] for each in (self._norm, norm))
        return bool((first == second).all())

    def _take_clipped(self) -> None:
        if self._clipped and not self._clipped_taken:
            self._clipped_taken = True
            self._each_parameter(Kind.CLIPPED_GRAD)

    def _each_parameter(self, kind: Kind, parameters: Iterable[Parameter] | None = None) -> None:
        for parameter in self._context.adapter.parameters() if parameters is None else parameters:
            where = str(self._context.id(parameter.module, kind, parameter.name))
            self._context.recorder.guarded(where, partial(self._take, kind, parameter))

    def _take(self, kind: Kind, parameter: Parameter) -> None:
        for part in self._context.adapter.parts(kind, parameter):
            id_ = self._context.id(parameter.module, kind, part.slot)
            self._context.recorder.value(id_, part.tensor, layout=part.layout)
            if self._overwriter is not None:
                noisy = kind in _MADE_NOISY
                self._overwriter.fill(id_, part.tensor, noisy=noisy, layout=part.layout)
