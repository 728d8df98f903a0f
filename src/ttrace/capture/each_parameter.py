"""One kind of what belongs to parameters, of all of them: values, a gradient, a state.

Enters: a moment of a step. Leaves: records of what the adapter has of each parameter then; an
isolated run overwrites it after that.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from ttrace.adapters.base import Parameter
from ttrace.capture.annotate import annotated_layout
from ttrace.capture.context import StepContext
from ttrace.capture.items import Written
from ttrace.capture.overwrite import Overwriter
from ttrace.capture.sheets import OwnTensor
from ttrace.capture.weights import Name
from ttrace.core.ids import Kind, TensorId

_MADE_NOISY = frozenset({Kind.REDUCED_GRAD, Kind.MAIN_GRAD, Kind.CLIPPED_GRAD})


class Recorded:
    """Parameters of which something was recorded, and what."""

    def __init__(self) -> None:
        self.names: set[Name] = set()
        self.written: list[Written] = []


class EachParameter:
    """Records it of all parameters at once; in an isolated run of one after the other."""

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
