"""What a tracer puts into a run, as its settings ask: all of it, or nothing where a part fails."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch

from ttrace.adapters.base import Adapter
from ttrace.adapters.patching import guarding
from ttrace.capture.boundary import Boundary
from ttrace.capture.buffers import Buffers
from ttrace.capture.context import StepContext
from ttrace.capture.guard import Guard
from ttrace.capture.hooks import ModuleHooks
from ttrace.capture.manifest import describe_rank
from ttrace.capture.noise import Noise
from ttrace.capture.operator_mode import OperatorMode
from ttrace.capture.overwrite import Overwriter
from ttrace.capture.passes import BackwardPasses
from ttrace.capture.recorder import Recorder
from ttrace.capture.regroup import CodesWatch, Current, Regrouping
from ttrace.capture.sample_blocks import CutCalls
from ttrace.capture.schedule import Schedule
from ttrace.capture.settings import Settings
from ttrace.capture.shipping import writer_of
from ttrace.capture.tapping import Tapping
from ttrace.capture.tracer import Attached, Outside
from ttrace.capture.unquantised import HighPrecision, Regions
from ttrace.capture.update import Update
from ttrace.capture.watching import Watching
from ttrace.capture.weights import WeightHooks
from ttrace.core.ids import tapped_modules
from ttrace.trace.fingerprint import FINGERPRINT, FingerprintPayload
from ttrace.trace.payload import FULL, Payload
from ttrace.trace.payloads import payload_named
from ttrace.trace.plan import IsolationPlan, plan_file
from ttrace.trace.sample_blocks_file import read_blocks


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruments:
    """Who records what of a run; all share the context of the step."""

    context: StepContext
    recorder: Recorder
    modes: tuple[OperatorMode, ...]
    overwriter: Overwriter | None
    boundary: Boundary
    buffers: Buffers
    hooks: ModuleHooks
    weights: WeightHooks
    backward: BackwardPasses
    update: Update
    schedule: Schedule
    earlier_steps: tuple[int, ...]  # of a run that was killed, with whose trace this one goes on


def install(
    adapter: Adapter, attached: Attached, settings: Settings, outside: Outside, guard: Guard
) -> Instruments:
    """Claim the folder of this rank and put hooks on the model and its optimizers."""
    info = describe_rank(adapter, settings)
    payload = _payload(settings)
    with ExitStack() as undo:  # where one of them cannot be made
        share = settings.max_bytes and settings.max_bytes // info.world_size
        writer = writer_of(settings, info, share)
        undo.callback(writer.withdraw)
        recorder = Recorder(adapter, writer, info.rank, payload, guard, settings.inside or ())
        undo.callback(guard.handles.remove)
        context = StepContext(adapter, recorder)
        noise = _noise(adapter, settings, guard)
        overwriter = _overwriter(adapter, settings, info.rank, noise)
        told = guard.harmed
        regrouping = _regrouping(context, noise, guard)
        others = _undoing(adapter, settings, guard) or _watching_codes(context, settings, guard)
        boundary = _boundary(context, settings, overwriter, noise)
        hooks = ModuleHooks(context, boundary)
        if settings.blocks is not None:
            CutCalls(context, read_blocks(settings.blocks))
        weights = WeightHooks(context)
        with guarding(told):  # an adapter may watch an optimizer by patches
            update = Update(
                context,
                weights,
                attached.optimizers,
                overwriter=overwriter,
                regrouping=regrouping,
                outside=outside,
            )
        made = Instruments(
            context=context,
            recorder=recorder,
            modes=tuple(mode for mode in (regrouping, others) if mode is not None),
            overwriter=overwriter,
            boundary=boundary,
            buffers=Buffers(adapter),
            hooks=hooks,
            weights=weights,
            backward=BackwardPasses(context, weights),
            update=update,
            schedule=settings.schedule,
            earlier_steps=writer.steps,
        )
        undo.pop_all()
    return made


def _payload(settings: Settings) -> Payload:
    if settings.payload is None:
        return FULL
    if settings.payload == FINGERPRINT.name:  # one of its own: it holds memory of the run's device
        return FingerprintPayload() if settings.sums is None else FingerprintPayload(settings.sums)
    return payload_named(settings.payload)


def _noise(adapter: Adapter, settings: Settings, guard: Guard) -> Noise | None:
    if settings.noise_seed is None:
        return None
    return Noise(
        settings.noise_seed,
        adapter,
        other_kernels=settings.other_kernels,
        guard=guard,
    )


def _regrouping(context: StepContext, noise: Noise | None, guard: Guard) -> Regrouping | None:
    if noise is None:
        return None
    return Regrouping(noise, _shapes(context.adapter), guard.harmed, _current(context))


def _watching_codes(context: StepContext, settings: Settings, guard: Guard) -> CodesWatch | None:
    """Of an isolated run, where a module is compared by itself; noise brings its own."""
    if settings.plan is None or settings.noise_seed is not None:
        return None
    return CodesWatch(_current(context), context.adapter.roots, guard.harmed)


def _current(context: StepContext) -> Current:
    def path() -> str | None:
        call = context.calls.current()
        return None if call is None else call.path

    return path


def _undoing(adapter: Adapter, settings: Settings, guard: Guard) -> HighPrecision | None:
    if not settings.high_precision:
        return None
    return HighPrecision(Regions(adapter, settings.high_precision, guard), guard.harmed)


def _overwriter(
    adapter: Adapter, settings: Settings, rank: int, noise: Noise | None
) -> Overwriter | None:
    if settings.plan is None:
        return None
    return Overwriter(IsolationPlan.read(plan_file(settings.plan, rank)), adapter, noise)


def _boundary(
    context: StepContext,
    settings: Settings,
    overwriter: Overwriter | None,
    noise: Noise | None,
) -> Boundary:
    if overwriter is not None:
        return Tapping(context, overwriter, overwriter.modules)
    if settings.tap:
        paths = (path for path, _ in context.adapter.modules())
        return Tapping(context, None, tapped_modules(paths, settings.inside))
    return Watching(context, noise)


def _shapes(adapter: Adapter) -> Iterable[torch.Size]:
    """Of what this rank holds of each parameter."""
    return (adapter.to_local(parameter.tensor)[0].shape for parameter in adapter.parameters())


def seen_by(modes: Sequence[OperatorMode]) -> dict[str, Any]:
    """What a summary tells of the operators that they saw, by its fields."""
    looked = [found for mode in modes if (found := mode.quantising()) is not None]
    return {
        "quantising": tuple(each for found in looked for each in found) if looked else None,
        "rounds_updates": any(mode.rounds_updates() for mode in modes),
        "undone": tuple(each for mode in modes for each in mode.undone()),
    }
