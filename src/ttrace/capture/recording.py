"""The tracer of a traced run: what happens around one training step, in order."""

from __future__ import annotations

import inspect
import platform
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import metadata
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from ttrace.capture.hooks import ModuleHooks
from ttrace.capture.loss import watch_backward
from ttrace.capture.noise import Noise
from ttrace.capture.recorder import Recorder
from ttrace.core.adapter import Adapter
from ttrace.core.ids import Kind, TensorId
from ttrace.core.record import ModuleInfo, RankInfo, Summary
from ttrace.core.writer import TraceWriter


class RecordingTracer:
    """Records the first `steps` steps, then takes its hooks away and closes the trace."""

    enabled = True

    def __init__(
        self,
        *,
        adapter: Adapter,
        optimizers: Sequence[Optimizer],
        folder: Path,
        steps: int,
        noise_seed: int | None,
    ) -> None:
        place = adapter.place()
        info = RankInfo(
            rank=place.rank,
            world_size=place.world_size,
            axes=place.axes,
            batch=place.batch,
            adapter=adapter.name,
            device=_device(adapter),
            perturbed=noise_seed,
            modules=tuple(
                _describe(path, adapter.written_class(module)) for path, module in adapter.modules()
            ),
            versions=_versions(),
        )
        self._adapter = adapter
        self._recorder = Recorder(adapter, TraceWriter(folder, info), place.rank)
        self._noise = None if noise_seed is None else Noise(noise_seed, adapter)
        self._hooks = ModuleHooks(adapter, self._recorder, self._noise)
        self._steps = steps
        self._done = 0
        self._inside = False
        self._closed = False
        self._loss_named = False
        self._gradients_taken = False
        self._restore: list[Callable[[], None]] = []
        self._notes: list[str] = []
        self._optimizers = optimizers
        self._handles = [opt.register_step_pre_hook(self._before_update) for opt in optimizers]
        self._handles += [opt.register_step_post_hook(self._after_update) for opt in optimizers]
        self._updated: set[int] = set()
        # Also in children of multiprocessing, where atexit does not run.
        Finalize(None, self._close, exitpriority=0)

    @contextmanager
    def step(self) -> Iterator[None]:
        if self._closed or self._inside:
            yield
            return
        self._begin()
        try:
            with self._adapter.tracking(), watch_backward(self._around_backward):
                yield
        except BaseException:
            self._abandon()
            raise
        self._end()

    def loss(self, value: torch.Tensor) -> torch.Tensor:
        if self._inside:
            self._loss_named = True
            self._record_loss(value)
        return value

    def _begin(self) -> None:
        self._inside = True
        self._loss_named = self._gradients_taken = False
        self._updated.clear()
        self._hooks.begin(self._done)
        self._each_parameter(Kind.PARAM, lambda parameter: parameter)
        if self._noise is not None:
            for parameter in self._adapter.parameters():
                key = f"step{self._done}/{parameter.module}:param.{parameter.name}"
                self._restore.append(self._noise.on_parameter(parameter.tensor, key))

    def _end(self) -> None:
        self._take_gradients()
        missing = len(self._optimizers) - len(self._updated)
        if missing:
            self._notes.append(
                f"step {self._done}: {missing} of {len(self._optimizers)} optimizers made no step "
                "inside tracer.step(), so there are no updated parameters to compare"
            )
        elif self._optimizers:
            self._each_parameter(Kind.PARAM_AFTER, lambda parameter: parameter)
        self._inside = False
        self._hooks.end()
        self._recorder.end_step()
        self._done += 1
        if self._done >= self._steps:
            self._close()

    def _abandon(self) -> None:
        """A step that raised is not a step: its trace gets no end, so that it never looks whole."""
        self._restore_parameters()
        self._hooks.end()
        self._close()
        self._inside = False

    def _before_update(self, *_: Any) -> None:
        if self._inside:
            self._take_gradients()

    def _after_update(self, optimizer: Optimizer, *_: Any) -> None:
        if self._inside:
            self._updated.add(id(optimizer))

    def _take_gradients(self) -> None:
        """Once a step, at the first optimizer step: the gradients are final then."""
        self._restore_parameters()
        if not self._gradients_taken:
            self._gradients_taken = True
            self._each_parameter(Kind.MAIN_GRAD, self._adapter.main_grad)

    def _restore_parameters(self) -> None:
        for restore in self._restore:
            restore()
        self._restore.clear()

    def _each_parameter(
        self, kind: Kind, tensor_of: Callable[[nn.Parameter], torch.Tensor | None]
    ) -> None:
        for parameter in self._adapter.parameters():
            id_ = TensorId(step=self._done, module=parameter.module, kind=kind, slot=parameter.name)
            try:
                tensor = tensor_of(parameter.tensor)
                if tensor is not None:
                    self._recorder.value(id_, tensor)
            except Exception as error:  # noqa: BLE001  (a fault of ours must not reach the run)
                self._recorder.fault(str(id_), error)

    @contextmanager
    def _around_backward(self, losses: Sequence[torch.Tensor]) -> Iterator[None]:
        """The arriving gradients tell the microbatch of a loss; its place is before them."""
        sequence = self._recorder.next_sequence()
        self._hooks.calls.backward_microbatch = None
        yield
        if not self._loss_named:
            for loss in losses:
                self._record_loss(loss, self._hooks.calls.backward_microbatch, sequence)

    def _record_loss(
        self, value: torch.Tensor, microbatch: int | None = None, sequence: int | None = None
    ) -> None:
        id_ = TensorId(step=self._done, module="", kind=Kind.LOSS)
        if microbatch is None:
            microbatch = self._hooks.calls.microbatch
        try:
            self._recorder.value(id_, value, microbatch=microbatch, sequence=sequence)
        except Exception as error:  # noqa: BLE001  (a fault of ours must not reach the run)
            self._recorder.fault(str(id_), error)

    def _close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._hooks.remove()
        for handle in self._handles:
            handle.remove()
        if self._inside:
            return  # the process ends in the middle of a step: the trace is not whole
        self._recorder.close(
            Summary(
                steps=self._done,
                hooks_expected=self._hooks.expected,
                hooks_fired=self._hooks.fired,
                unfired=tuple(self._hooks.unfired),
                never_called=self._hooks.never_called() if self._done else (),
                notes=tuple(self._notes),
            )
        )


def _device(adapter: Adapter) -> str:
    first = next(adapter.parameters(), None)
    device = torch.device("cpu") if first is None else first.tensor.device
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def _versions() -> dict[str, str]:
    return {
        "ttrace": metadata.version("ttrace") if _installed("ttrace") else "source",
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def _installed(name: str) -> bool:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def _describe(path: str, kind: type) -> ModuleInfo:
    try:
        file = inspect.getsourcefile(kind)
        line = inspect.getsourcelines(vars(kind).get("forward", kind))[1]
        source = f"{file}:{line}" if file else ""
    except (OSError, TypeError):
        source = ""
    return ModuleInfo(path=path, class_name=kind.__qualname__, source=source)
