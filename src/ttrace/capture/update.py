"""What happens to parameters in a step: gradients after backward, norm, clipping, optimizer.

Enters: the moments at which a framework reduces, clips and updates. Leaves: records of parameters,
their gradients at each moment, the optimizer's state, and buffers that the step changed; an
isolated run then overwrites them.

Every parameter is recorded when its own optimizer begins its step: a discriminator's gradients are
not those of the generator's loss, and an optimizer that steps inside backward leaves none behind.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain
from typing import Any

import torch
import xxhash
from torch.optim import Optimizer

from ttrace.adapters.base import Adapter, Parameter
from ttrace.adapters.patching import patched
from ttrace.capture.annotate import annotated_layout
from ttrace.capture.clipping import Clipping, watch_clipping, watch_scaling
from ttrace.capture.context import StepContext
from ttrace.capture.hyperparameters import Hyperparameters
from ttrace.capture.items import OwnTensor, Written
from ttrace.capture.optimizer_hooks import (
    Arguments,
    OptimizerHooks,
    exchange_closure,
    select_parameters,
    watched_closure,
)
from ttrace.capture.overwrite import Overwriter
from ttrace.capture.regroup import Regrouping
from ttrace.capture.tracer import Outside
from ttrace.capture.weights import Name, WeightHooks
from ttrace.core.ids import Kind, TensorId
from ttrace.core.record import CLIPPED_TO, LOSS_SCALE, UPDATE
from ttrace.trace.payload import tensor_bytes

_MADE_NOISY = frozenset({Kind.REDUCED_GRAD, Kind.MAIN_GRAD, Kind.CLIPPED_GRAD})


class Update:
    """Records parameters and everything that belongs to them, around backward."""

    def __init__(
        self,
        context: StepContext,
        weights: WeightHooks,
        optimizers: Sequence[Any],
        *,
        overwriter: Overwriter | None,
        regrouping: Regrouping | None = None,
        outside: Outside | None = None,
    ) -> None:
        self.hyperparameters = Hyperparameters(context.adapter, context.recorder)
        self._context = context
        self._weights = weights
        self._optimizers = context.adapter.optimizers(optimizers)
        self.stepped: dict[str, None] = {}  # classes of optimizers that made a step, in order
        self._overwriter = overwriter
        self._regrouping = regrouping
        self._outside = outside
        self._is_outside = False
        self.by_hand = False  # whether parameters are updated without an optimizer
        self._accumulated: set[int] = set()
        self._updated: set[int] = set()  # optimizers
        self._taken: set[Name] = set()  # parameters whose main gradient is recorded
        self._given: set[Name] = set()  # parameters whose gradient an optimizer was given
        self._record = EachParameter(context, overwriter)
        self._before: list[Written] = []  # parameters before the step
        self._clipping = Clipping(context, overwriter, self._take_gradients, self._note)
        self._hooks = OptimizerHooks(
            context.guard,
            self._optimizers,
            before=self._before_update,
            after=self._after_update,
        )

    def begin(self) -> None:
        self._is_outside = False
        self._clipping.begin()
        for seen in (self._updated, self._accumulated, self._taken, self._given):
            seen.clear()
        self._before = self._record(Kind.PARAM).written
        note = partial(self.hyperparameters.of_modules, self._context.number or 0)
        self._context.guard.recording("the modules' numbers", note)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """While open, gradients are recorded when they are accumulated, reduced and clipped."""
        adapter = self._context.adapter
        with (
            watch_clipping(self._clipping.before, partial(self._note_number, CLIPPED_TO)),
            watch_scaling(partial(self._note_number, LOSS_SCALE)),
            patched(torch.nn.Module, "zero_grad", self._around_zero_grad),
            adapter.watch_clipping(self._clipping.before),
            adapter.watch_accumulation(self._before_reduction),
            adapter.watch_reduction(self._after_reduction),
        ):
            yield

    @property
    def may_come(self) -> bool:
        """Whether there are gradients, and optimizers that made no step: more may be added."""
        return bool(self._optimizers) and not self._updated and self._weights.has_any

    @property
    def is_awaited(self) -> bool:
        """The same of a step that was left, whose gradients are still there.

        Where they were dropped, its update was left out: a loss scaler does that.
        """
        return self.may_come and self._context.adapter.has_gradients()

    @property
    def is_complete(self) -> bool:
        return len(self._updated) == len(self._optimizers) > 0

    def end(self) -> None:
        """Record what the step left behind."""
        guard, parameters = self._context.guard, list(self._context.adapter.parameters())
        self._take_gradients(parameters)
        self._give_gradients(parameters)
        guard.recording("parameters' local gradients", partial(self._note_unseen, parameters))
        missing = len(self._optimizers) - len(self._updated)
        if missing:
            lost = "" if self._updated else ", so there are no updated parameters to compare"
            self._note(
                f"{missing} of {len(self._optimizers)} optimizers made no step inside "
                f"tracer.step(){lost}"
            )
        self.by_hand |= not self._optimizers and self._weights.has_any
        if self._updated or self.by_hand:
            self._record(Kind.OPTIMIZER, parameters)
            after = self._record(Kind.PARAM_AFTER, parameters).written
            recorder, step = self._context.recorder, f"step {self._context.number}: "
            if not recorder.is_muted:
                recorder.when_written(partial(self._note_unchanged, step, self._before, after))

    def _note_unchanged(
        self, step: str, before: Sequence[Written], after: Sequence[Written]
    ) -> None:
        known, found = (dict(chain(*(w.checksums().items() for w in s))) for s in (before, after))
        is_known = bool(found) and None not in found.values()  # and nothing of it was lost
        if is_known and found == known:
            self._context.notes.append(f"{step}no parameter was changed inside tracer.step()")

    def _note_number(self, name: str, value: object) -> None:
        note = partial(self.hyperparameters.of_step, self._context.number or 0, name, value)
        self._context.guard.recording(name, note)

    def _before_update(
        self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Arguments | None:
        """What its step gets instead of its arguments; None leaves them as they are."""
        if self._context.number is None:
            self._is_outside = self._outside is not None and self._outside.begin()
            if not self._is_outside:
                return None
            self._hooks.put_last(optimizer)
        assert self._context.number is not None
        note = partial(self.hyperparameters.of_optimizer, self._context.number, optimizer)
        self._context.guard.recording("the optimizer's numbers", note)
        self._context.places.meet(UPDATE)
        watched = partial(
            watched_closure,
            after_first=partial(self._meet, optimizer),
            around_others=self._evaluating_again,
            told=self._context.guard.harmed,
        )
        changed = exchange_closure(args, kwargs, watched)
        if changed is None:
            self._meet(optimizer)
        return changed

    @contextmanager
    def _evaluating_again(self) -> Iterator[None]:
        self._note("the closure was evaluated several times; the first evaluation is compared")
        self._tell_regrouping(is_updating=False)
        with self._context.paused():
            yield
        self._tell_regrouping(is_updating=True)

    def _meet(self, optimizer: Optimizer) -> None:
        """Record the gradients that this optimizer is given; its update comes next."""
        owned = self._parameters_of(optimizer)
        self._take_gradients(owned)
        self._give_gradients(owned)
        self._tell_regrouping(is_updating=True)

    def _after_update(self, optimizer: Optimizer, *_: Any) -> None:
        if self._context.number is not None:
            self._updated.add(id(optimizer))
            self.stepped[type(optimizer).__qualname__] = None
            self._tell_regrouping(is_updating=False)
            if self._is_outside and self._outside is not None:
                self._is_outside = False
                self._outside.end()

    def _around_zero_grad(self, original: Any, *args: Any, **kwargs: Any) -> None:
        """Who updates by hand leaves gradients until they are dropped."""
        if not self._optimizers and self._weights.has_any:
            self._take_gradients()
        original(*args, **kwargs)

    def _parameters_of(self, optimizer: Optimizer) -> Sequence[Parameter]:
        is_alone = len(self._optimizers) == 1
        return select_parameters(self._context.adapter, optimizer, is_alone=is_alone)

    def _note(self, text: str) -> None:
        note = f"step {self._context.number}: {text}"
        is_told = self._context.number is not None and not self._context.recorder.is_muted
        if is_told and note not in self._context.notes:
            self._context.notes.append(note)

    def _tell_regrouping(self, *, is_updating: bool) -> None:
        if self._regrouping is not None:
            self._regrouping.is_updating = is_updating

    def _take_gradients(self, parameters: Iterable[Parameter] | None = None) -> None:
        """Record main gradients, once a step, before clipping or their optimizer's step.

        All are reduced by then.
        """
        parameters = self._context.adapter.parameters() if parameters is None else parameters
        left = [p for p in parameters if (p.module, p.name) not in self._taken]
        self._taken |= self._record(Kind.MAIN_GRAD, left).names

    def _give_gradients(self, parameters: Iterable[Parameter]) -> None:
        """Record gradients as clipping left them, once a step, before their optimizer's step."""
        left = [p for p in parameters if (p.module, p.name) not in self._given]
        self._given |= {(p.module, p.name) for p in left}
        if self._clipping.happened:
            self._record(Kind.CLIPPED_GRAD, left)

    def _note_unseen(self, parameters: Iterable[Parameter]) -> None:
        unseen = [
            f"{p.module}.{p.name}".lstrip(".")
            for p in parameters
            if (p.module, p.name) in self._taken and not self._weights.has(p.module, p.name)
        ]
        if unseen:
            more = f" and {len(unseen) - 3} more" if len(unseen) > 3 else ""
            self._note(
                f"no local gradient was seen of {', '.join(unseen[:3])}{more}, only the reduced one"
            )

    def _after_reduction(self, parameters: Sequence[Parameter]) -> None:
        self._record(Kind.REDUCED_GRAD, parameters)

    def _before_reduction(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        self._context.guard.recording(
            "accumulated gradients", lambda: self._take_accumulated(parameters)
        )

    def _take_accumulated(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        context, adapter = self._context, self._context.adapter
        if context.number is None:
            return
        reduced = {id(parameter) for parameter in parameters} - self._accumulated
        self._accumulated |= reduced
        for p in adapter.parameters():
            gradient = adapter.main_grad(p.tensor) if id(p.tensor) in reduced else None
            if gradient is not None:
                id_ = context.id(p.module, Kind.ACCUMULATED_GRAD, p.name)
                layout = annotated_layout(p.tensor, gradient)
                layout = layout or adapter.local_gradient_layout(p.module, p.name)
                # An object of its own: the reduction changes it in place, which it need not tell.
                context.recorder.value(id_, gradient.detach(), layout=layout)


class Recorded:
    """Parameters of which something was recorded, and what."""

    def __init__(self) -> None:
        self.names: set[Name] = set()
        self.written: list[Written] = []


class EachParameter:
    """Records one kind of what belongs to parameters, of all of them: values, a gradient, a state.

    An isolated run does so for one parameter after the other, and overwrites it after that.
    """

    def __init__(self, context: StepContext, overwriter: Overwriter | None) -> None:
        self._context = context
        self._overwriter = overwriter

    def __call__(self, kind: Kind, parameters: Iterable[Parameter] | None = None) -> Recorded:
        """Record all tensors of this kind; an isolated run overwrites each before the next."""
        recorded = Recorded()
        if self._context.number is None:
            return recorded
        parameters = self._context.adapter.parameters() if parameters is None else parameters
        if self._overwriter is None:
            self._record_all(kind, parameters, recorded)
            return recorded
        for parameter in parameters:
            for entry in self._record_all(kind, [parameter], recorded):
                id_ = self._context.id(entry.module, kind, entry.slot)
                fill = partial(self._fill, self._overwriter, id_, entry)
                self._context.guard.recording(id_, fill)
            self._context.adapter.filled(kind, parameter)
        return recorded

    def _record_all(
        self, kind: Kind, parameters: Iterable[Parameter], recorded: Recorded
    ) -> list[OwnTensor]:
        entries: list[OwnTensor] = []
        recording, parts = self._context.guard.recording, self._entries
        for parameter in parameters:
            found = recording(parameter.name, parts, kind, parameter)
            if found:
                entries += found
                recorded.names.add((parameter.module, parameter.name))
        assert self._context.number is not None
        if entries:
            values = self._context.recorder.values
            recorded.written.append(values(self._context.number, kind, entries))
        return entries

    def _entries(self, kind: Kind, parameter: Parameter) -> list[OwnTensor]:
        """What this rank holds of one."""
        return [
            OwnTensor(
                parameter.module,
                part.slot,
                part.tensor,
                annotated_layout(parameter.tensor, part.tensor) or part.layout,
            )
            for part in self._context.adapter.parts(kind, parameter)
        ]

    def _fill(self, overwriter: Overwriter, id_: TensorId, entry: OwnTensor) -> None:
        overwriter.fill(id_, entry.tensor, noisy=id_.kind in _MADE_NOISY, layout=entry.layout)


class Buffers:
    """Says which buffers a step changes: running statistics, counters, histories of scales.

    Kernels change running statistics unseen by autograd: a digest of every buffer is remembered.
    """

    def __init__(self, adapter: Adapter) -> None:
        self._adapter = adapter
        self._digests: dict[tuple[str, str], str] = {}
        # Whether a step changes a maximum over the last ones may depend on rounding: what one step
        # has changed is there in every later step.
        self._changing: set[tuple[str, str]] = set()

    def begin(self) -> None:
        self._digests = {(path, name): self._digest(value) for path, name, value in self.all()}

    def changed(self) -> Iterator[tuple[str, str, torch.Tensor]]:
        """Module path, name and value of every buffer that is new, or that some step changed."""
        for path, name, value in self.all():
            if self._digests.get((path, name)) != self._digest(value):
                self._changing.add((path, name))
            if (path, name) in self._changing:
                yield path, name, value

    def all(self) -> Iterator[tuple[str, str, torch.Tensor]]:
        """Module path, name and value of every buffer."""
        for path, module in self._adapter.modules():
            if module._buffers:  # noqa: SLF001  (most have none, and every step asks all)
                for name, value in module.named_buffers(recurse=False):
                    yield path, name, value

    def record(self, context: StepContext, overwriter: Overwriter | None) -> None:
        """Record those that a step changed, and give an isolated run the reference's."""
        recorder = context.recorder
        for module, name, value in self.changed():
            id_ = context.id(module, Kind.BUFFER, name)
            recorder.guard.recording(id_, partial(recorder.value, id_, value))
        if overwriter is not None:
            for module, name, value in self.all():  # also what only the reference changed
                id_ = context.id(module, Kind.BUFFER, name)
                recorder.guard.recording(id_, partial(overwriter.fill, id_, value, noisy=False))

    def _digest(self, value: torch.Tensor) -> str:
        local, _ = self._adapter.to_local(value)
        digest: str = xxhash.xxh3_64_hexdigest(tensor_bytes(local.cpu()))
        return digest
