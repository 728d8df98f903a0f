"""Where a training script meets TTrace: three lines, inert unless the run is traced or watched."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import ref

from ttrace.capture.guard import Guard, log_fault
from ttrace.capture.settings import OUT, PACKED, WATCH, Settings, WatchSettings, unpacked
from ttrace.capture.tracer import Attached, OffTracer, Tracer
from ttrace.core.simulated import OfRank
from ttrace.trace.progress import write_refusal
from ttrace.trace.store import place_of

if TYPE_CHECKING:
    from ttrace.capture.replicas.tracer import ReplicaTracer
    from ttrace.capture.step import RecordingTracer


def attach(model: Any, optimizer: Any = None) -> Tracer:
    """Watch a model and its optimizer. Call it after the model was parallelised and wrapped.

    `model` is a module, or the PipelineStages or Megatron model chunks that this rank holds. The
    optimizer is torch's, several of them, or the framework's own. Several models are attached
    together, in a list or by name: `attach({"generator": g, "critic": c}, [optimizer_g,
    optimizer_c])`; or one after the other before the first step, which is the same as a list.

    It never raises: a model that is none, settings that cannot be, a folder that cannot be written
    into and any fault of ours are said once in the log of the run, and by whoever reads the trace.
    What raises is `annotate` and `Split`, which a script calls for TTrace alone.
    """
    folder = os.environ.get(OUT) or os.environ.get(WATCH)
    told = folder or os.environ.get(PACKED)
    if not told:
        return OffTracer()
    try:
        if (os.getpid(), told) in _REFUSED.get():
            return OffTracer()
        environment = unpacked(os.environ)
        folder = environment.get(OUT) or environment.get(WATCH)
        watched = WatchSettings.from_environment(environment)
        if watched is not None:
            return _watching(model, _listed(optimizer), watched)
        settings = Settings.from_environment(environment)
        return OffTracer() if settings is None else _recording(model, _listed(optimizer), settings)
    except Exception as error:  # noqa: BLE001  (whatever we cannot trace must train all the same)
        _refuse(told, folder, error)
        return OffTracer()


def _listed(optimizer: Any) -> Sequence[Any]:
    if optimizer is None:
        return []
    return optimizer if isinstance(optimizer, (list, tuple)) else [optimizer]


def _watching(model: Any, optimizers: Sequence[Any], settings: WatchSettings) -> ReplicaTracer:
    """One tracer of a process: a model that is attached later takes the place of what trained."""
    from ttrace.adapters.registry import find_adapter
    from ttrace.capture.replicas.tracer import ReplicaTracer

    earlier = _WATCHES.get()()
    attached, outcome = Attached(model, optimizers), None
    if earlier is not None and earlier.is_open and earlier.folder == settings.folder:
        outcome = earlier.log
        if not earlier.has_begun:
            attached = earlier.attached.and_then(model, optimizers)
    tracer = ReplicaTracer(find_adapter(attached.model), attached, settings, outcome)
    if earlier is not None and outcome is not None:
        earlier.let_go()
        earlier.successor = None if earlier.has_begun else tracer
    _WATCHES.set(ref(tracer))
    return tracer


def _recording(model: Any, optimizers: Sequence[Any], settings: Settings) -> RecordingTracer:
    # Only a traced run pays for importing the frameworks' modules.
    from ttrace.adapters.registry import find_adapter
    from ttrace.capture.rounding import split_linears
    from ttrace.capture.step import RecordingTracer

    earlier = _LAST.get()()
    if earlier is not None and not earlier.can_make_room(settings):
        earlier = None
    guard = Guard() if earlier is None else earlier.guard
    if settings.split > 1:
        parts = model.values() if isinstance(model, Mapping) else model
        split_linears(parts, settings.split, guard)
    if earlier is None:
        tracer = RecordingTracer(find_adapter(model), Attached(model, optimizers), settings, guard)
    else:
        attached = earlier.attached.and_then(model, optimizers)
        adapter = find_adapter(attached.model)  # before anything is given up for it
        earlier.withdraw()
        tracer = RecordingTracer(adapter, attached, settings, guard)
        earlier.successor = tracer
    with ExitStack() as undo:
        undo.callback(tracer.withdraw)
        _remember(tracer)
        undo.pop_all()
    return tracer


def _refuse(told: str, folder: str | None, error: Exception) -> None:
    """Whatever else is attached would be a part of the run, with a tracer that nobody steps."""
    with suppress(Exception):
        _REFUSED.get().add((os.getpid(), told))
    with suppress(Exception):  # a disk that takes no trace may not take this either
        why = log_fault("ttrace.attach could not trace what it was given", error)
        place = place_of(folder) if folder else None
        if isinstance(place, Path):  # no run waits for a network
            write_refusal(place, why)


# Processes, and what told them to trace in vain.
_REFUSED: OfRank[set[tuple[int, str]]] = OfRank(set)


def _nobody() -> None:
    return None


_LAST: OfRank[Callable[[], RecordingTracer | None]] = OfRank(lambda: _nobody)
_WATCHES: OfRank[Callable[[], ReplicaTracer | None]] = OfRank(lambda: _nobody)


def _remember(tracer: RecordingTracer) -> None:
    _LAST.set(ref(tracer))
