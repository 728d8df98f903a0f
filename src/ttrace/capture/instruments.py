"""What a tracer puts into a run, as its settings ask: all of it, or nothing where a part fails."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from typing import Any

import torch

from ttrace.adapters.base import Adapter
from ttrace.adapters.patching import guarding
from ttrace.capture.backward import BackwardPasses
from ttrace.capture.boundary import Boundary, Tapping, Watching
from ttrace.capture.context import StepContext
from ttrace.capture.guard import Guard
from ttrace.capture.hooks import ModuleHooks
from ttrace.capture.manifest import describe_rank
from ttrace.capture.noise import Noise
from ttrace.capture.operator_mode import OperatorMode
from ttrace.capture.overwrite import Overwriter
from ttrace.capture.recorder import Recorder
from ttrace.capture.regroup import CodesWatch, Current, Regrouping
from ttrace.capture.sample_blocks import CutCalls
from ttrace.capture.settings import Settings
from ttrace.capture.shipping import writer_of
from ttrace.capture.tracer import Attached, Outside
from ttrace.capture.unquantised import HighPrecision, Regions
from ttrace.capture.update import Buffers, Update
from ttrace.capture.weights import WeightHooks
from ttrace.core.ids import tapped_modules
from ttrace.trace.fingerprint import FINGERPRINT, FingerprintPayload
from ttrace.trace.payload import FULL, Payload
from ttrace.trace.payloads import payload_named
from ttrace.trace.plan import IsolationPlan, plan_file, read_blocks


class Instruments:
    """Who records what of a run; all share the context of the step."""

    def __init__(
        self,
        adapter: Adapter,
        attached: Attached,
        settings: Settings,
        outside: Outside,
        guard: Guard,
    ) -> None:
        """Claim the folder of this rank and put hooks on the model and its optimizers."""
        info, payload = describe_rank(adapter, settings), _payload(settings)
        with ExitStack() as undo:  # where one of them cannot be made
            share = settings.max_bytes and settings.max_bytes // info.world_size
            writer = writer_of(settings, info, share)
            undo.callback(writer.withdraw)
            # Of a run that was killed, with whose trace this one goes on.
            self.earlier_steps = writer.steps
            inside = settings.inside or ()
            self.recorder = Recorder(adapter, writer, info.rank, payload, guard, inside)
            undo.callback(guard.handles.remove)
            self.context = context = StepContext(adapter, self.recorder)
            noise = _noise(adapter, settings, guard)
            self.overwriter = _overwriter(adapter, settings, info.rank, noise)
            regrouping = None
            if noise is not None:
                regrouping = Regrouping(noise, _shapes(adapter), guard.harmed, _current(context))
            others = _undoing(adapter, settings, guard) or _watching_codes(context, settings, guard)
            self.modes = tuple(mode for mode in (regrouping, others) if mode is not None)
            self.boundary = _boundary(context, settings, self.overwriter, noise)
            self.hooks = ModuleHooks(context, self.boundary)
            if settings.blocks is not None:
                CutCalls(context, read_blocks(settings.blocks))
            self.weights = WeightHooks(context)
            with guarding(guard.harmed):  # an adapter may watch an optimizer by patches
                self.update = Update(
                    context,
                    self.weights,
                    attached.optimizers,
                    overwriter=self.overwriter,
                    regrouping=regrouping,
                    outside=outside,
                )
            self.buffers = Buffers(adapter)
            self.backward = BackwardPasses(context, self.weights)
            undo.pop_all()


def _payload(settings: Settings) -> Payload:
    if settings.payload is None:
        return FULL
    if settings.payload == FINGERPRINT.name:  # one of its own: it holds memory of the run's device
        return FingerprintPayload() if settings.sums is None else FingerprintPayload(settings.sums)
    return payload_named(settings.payload)


def _noise(adapter: Adapter, settings: Settings, guard: Guard) -> Noise | None:
    if settings.noise_seed is None:
        return None
    seed, other_kernels = settings.noise_seed, settings.other_kernels
    return Noise(seed, adapter, other_kernels=other_kernels, guard=guard)


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
    context: StepContext, settings: Settings, overwriter: Overwriter | None, noise: Noise | None
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
