"""The tracer of a traced run: what happens around one training step, in order."""

from __future__ import annotations

import inspect
import platform
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import metadata
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any

import torch
from torch.optim import Optimizer

from ttrace.adapters.base import Adapter, Parameter
from ttrace.capture.buffers import Buffers
from ttrace.capture.clipping import watch_clipping
from ttrace.capture.commit import checked_out
from ttrace.capture.hooks import ModuleHooks
from ttrace.capture.loss import watch_backward
from ttrace.capture.noise import Noise
from ttrace.capture.overwrite import Overwriter
from ttrace.capture.recorder import Recorder
from ttrace.capture.taps import TappingHooks
from ttrace.capture.weights import WeightHooks
from ttrace.core.ids import Kind, TensorId
from ttrace.core.record import ModuleInfo, RankInfo, Summary
from ttrace.trace.payload import FULL, payload_named
from ttrace.trace.plan import IsolationPlan, plan_file
from ttrace.trace.writer import TraceWriter


class RecordingTracer:
    """Records the first `steps` steps, then takes its hooks away and closes the trace."""

    enabled = True

    def __init__(
        self,
        *,
        adapter: Adapter,
        optimizers: Sequence[Any],
        folder: Path,
        steps: int,
        noise_seed: int | None,
        taps: bool = False,
        plans: Path | None = None,
        payload: str = FULL.name,
    ) -> None:
        coordinates = adapter.coordinates()
        info = RankInfo(
            rank=coordinates.rank,
            world_size=coordinates.world_size,
            axes=coordinates.axes,
            batch=coordinates.batch,
            loss_parts=coordinates.loss_parts,
            adapter=adapter.name,
            device=_device(adapter),
            noise_seed=noise_seed,
            modules=tuple(
                _describe(path, adapter.written_class(module)) for path, module in adapter.modules()
            ),
            versions=_versions(),
            facts=_facts(),
            vocabulary=coordinates.vocabulary,
        )
        self._adapter = adapter
        form = payload_named(payload)
        self._recorder = Recorder(adapter, TraceWriter(folder, info), coordinates.rank, form)
        self._noise = None if noise_seed is None else Noise(noise_seed, adapter)
        self._overwriter = None
        if plans is not None:
            plan = IsolationPlan.read(plan_file(plans, coordinates.rank))
            self._overwriter = Overwriter(plan, adapter, self._noise)
        self._hooks = self._choose_hooks(taps=taps)
        self._weights = WeightHooks(adapter, self._recorder)
        self._buffers = Buffers(adapter)
        self._steps = steps
        self._done = 0
        self._inside = False
        self._closed = False
        self._loss_named = False
        self._gradients_taken = False
        self._clipped = self._clipped_taken = False
        self._norm: torch.Tensor | None = None
        self._restore: list[Callable[[], None]] = []
        self._notes = list(adapter.notes)
        self._optimizers = optimizers = adapter.optimizers(optimizers)
        self._handles = [opt.register_step_pre_hook(self._before_update) for opt in optimizers]
        self._handles += [opt.register_step_post_hook(self._after_update) for opt in optimizers]
        self._updated: set[int] = set()
        self._accumulated: set[int] = set()
        # Also in children of multiprocessing, where atexit does not run.
        self._at_exit = Finalize(None, self._close, exitpriority=0)

    def _choose_hooks(self, *, taps: bool) -> ModuleHooks:
        if taps or self._overwriter is not None:
            return TappingHooks(self._adapter, self._recorder, self._overwriter)
        return ModuleHooks(self._adapter, self._recorder, self._noise)

    @contextmanager
    def step(self) -> Iterator[None]:
        if self._closed or self._inside:
            yield
            return
        self._begin()
        try:
            with (
                self._adapter.tracking(),
                watch_backward(self._around_backward),
                self._adapter.watch_backward(self._around_backward),
                watch_clipping(self._before_clipping),
                self._adapter.watch_clipping(self._before_clipping),
                self._adapter.watch_accumulation(self._before_reduction),
                self._adapter.watch_losses(self._hooks.aside),
                self._adapter.watch_reduction(self._after_reduction),
            ):
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
        self._clipped = self._clipped_taken = False
        self._norm = None
        self._updated.clear()
        self._accumulated.clear()
        self._hooks.begin(self._done)
        self._guarded("the parameters' hooks", self._begin_weights)
        self._guarded("the buffers", self._buffers.begin)
        self._each_parameter(Kind.PARAM)
        if self._noise is not None:
            for parameter in self._adapter.parameters():
                key = f"step{self._done}/{parameter.module}:param.{parameter.name}"
                self._restore.append(self._noise.on_parameter(parameter.tensor, key))

    def _end(self) -> None:
        self._take_gradients()
        self._take_clipped()
        missing = len(self._optimizers) - len(self._updated)
        if missing:
            self._notes.append(
                f"step {self._done}: {missing} of {len(self._optimizers)} optimizers made no step "
                "inside tracer.step(), so there are no updated parameters to compare"
            )
        elif self._optimizers:
            self._each_parameter(Kind.OPTIMIZER)
            self._each_parameter(Kind.PARAM_AFTER)
        self._guarded("the buffers", self._take_buffers)
        self._inside = False
        self._hooks.end()
        self._weights.end()
        self._recorder.end_step()
        self._done += 1
        if self._done >= self._steps:
            self._close()

    def _abandon(self) -> None:
        """A step that raised is not a step: its trace gets no end, so that it never looks whole."""
        self._restore_parameters()
        self._hooks.end()
        self._weights.end()
        self._close()
        self._inside = False

    def _before_update(self, *_: Any) -> None:
        if self._inside:
            self._take_gradients()
            self._take_clipped()

    def _after_update(self, optimizer: Optimizer, *_: Any) -> None:
        if self._inside:
            self._updated.add(id(optimizer))

    def _after_reduction(self, parameters: Sequence[Parameter]) -> None:
        self._each_parameter(Kind.REDUCED_GRAD, parameters)

    def _take_gradients(self) -> None:
        """Once a step, before clipping or the first optimizer step: all are reduced by then."""
        self._restore_parameters()
        if not self._gradients_taken:
            self._gradients_taken = True
            self._each_parameter(Kind.MAIN_GRAD)
            self._guarded("parameters without a local gradient", self._note_unseen)

    def _note_unseen(self) -> None:
        unseen = [
            f"{p.module}.{p.name}".lstrip(".")
            for p in self._adapter.parameters()
            if self._adapter.main_grad(p.tensor) is not None
            and not self._weights.has(p.module, p.name)
        ]
        if unseen:
            more = f" and {len(unseen) - 3} more" if len(unseen) > 3 else ""
            self._notes.append(
                f"step {self._done}: no local gradient was seen of {', '.join(unseen[:3])}{more}, "
                "only the reduced one"
            )

    def _before_reduction(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        self._guarded("accumulated gradients", lambda: self._take_accumulated(parameters))

    def _take_accumulated(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        reduced = {id(parameter) for parameter in parameters} - self._accumulated
        self._accumulated |= reduced
        for p in self._adapter.parameters():
            gradient = self._adapter.main_grad(p.tensor) if id(p.tensor) in reduced else None
            if gradient is not None:
                id_ = TensorId(
                    step=self._done, module=p.module, kind=Kind.ACCUMULATED_GRAD, slot=p.name
                )
                layout = self._adapter.local_gradient_layout(p.module, p.name)
                # A copy: the reduction changes it in place, which its object need not tell.
                self._recorder.value(id_, gradient.detach().clone(), layout=layout)

    def _before_clipping(self, norm: torch.Tensor | None) -> torch.Tensor | None:
        """The norm may wait for its reduction, which torch would do next: done here, it is seen."""
        whole = [norm]

        def take() -> None:
            whole[0] = None if norm is None else self._adapter.reduced(norm)
            self._take_norm(whole[0])
            whole[0] = self._isolated_norm(whole[0])

        self._guarded("the gradient norm", take)
        return whole[0]

    def _take_norm(self, norm: torch.Tensor | None) -> None:
        self._take_gradients()
        first, self._clipped = not self._clipped, True
        if first:
            self._norm = norm
            if norm is not None:
                id_ = TensorId(step=self._done, module="", kind=Kind.GRAD_NORM)
                self._recorder.value(id_, norm)
        elif not self._is_first_norm(norm):
            # Parameters of several meshes are clipped in groups, by one common norm.
            note = f"step {self._done}: gradients were clipped by several norms; the first is kept"
            self._notes += [] if note in self._notes else [note]

    def _isolated_norm(self, norm: torch.Tensor | None) -> torch.Tensor | None:
        if norm is None or self._overwriter is None:
            return norm
        id_ = TensorId(step=self._done, module="", kind=Kind.GRAD_NORM)
        reference = self._overwriter.value(id_, 0, norm, id_, None)
        return norm if reference is None else reference

    def _is_first_norm(self, norm: torch.Tensor | None) -> bool:
        if norm is None or self._norm is None:
            return norm is self._norm
        ours, theirs = (self._adapter.to_local(each)[0] for each in (self._norm, norm))
        return bool((ours == theirs).all())

    def _take_clipped(self) -> None:
        if self._clipped and not self._clipped_taken:
            self._clipped_taken = True
            self._each_parameter(Kind.CLIPPED_GRAD)

    def _take_buffers(self) -> None:
        for module, name, value in self._buffers.changed():
            self._value(Kind.BUFFER, module, name, value)

    def _value(self, kind: Kind, module: str, slot: str, tensor: torch.Tensor) -> None:
        id_ = TensorId(step=self._done, module=module, kind=kind, slot=slot)
        self._guarded(str(id_), lambda: self._recorder.value(id_, tensor))

    def _restore_parameters(self) -> None:
        for restore in self._restore:
            restore()
        self._restore.clear()

    def _each_parameter(self, kind: Kind, parameters: Iterable[Parameter] | None = None) -> None:
        for parameter in self._adapter.parameters() if parameters is None else parameters:
            id_ = TensorId(step=self._done, module=parameter.module, kind=kind, slot=parameter.name)
            self._guarded(str(id_), partial(self._take, kind, parameter))

    def _take(self, kind: Kind, parameter: Parameter) -> None:
        for part in self._adapter.parts(kind, parameter):
            id_ = TensorId(step=self._done, module=parameter.module, kind=kind, slot=part.slot)
            self._recorder.value(id_, part.tensor, layout=part.layout)
            if self._overwriter is not None:
                noisy = kind in (Kind.REDUCED_GRAD, Kind.MAIN_GRAD, Kind.CLIPPED_GRAD)
                self._overwriter.fill(id_, part.tensor, noisy=noisy, layout=part.layout)

    def _guarded(self, what: str, work: Callable[[], object]) -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001  (a fault of ours must not reach the run)
            self._recorder.fault(what, error)

    def _begin_weights(self) -> None:
        self._weights.begin(self._done, self._hooks.calls)

    @contextmanager
    def _around_backward(self, losses: Sequence[torch.Tensor]) -> Iterator[None]:
        """The arriving gradients tell the microbatch of a loss; its place is before them."""
        sequence = self._recorder.next_sequence()
        self._hooks.calls.backward_microbatch = None
        yield
        self._guarded("the parameters' gradients", self._weights.end_backward)
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
            layout = self._adapter.loss_layout()
            self._recorder.value(
                id_, value, microbatch=microbatch, sequence=sequence, layout=layout
            )
        except Exception as error:  # noqa: BLE001  (a fault of ours must not reach the run)
            self._recorder.fault(str(id_), error)

    def _close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._at_exit.cancel()  # it would keep the model, and its process groups, alive
        self._hooks.remove()
        self._weights.remove()
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


def _facts() -> dict[str, str]:
    """What else two runs may differ in, and a colleague asks for."""
    found = {
        "torch seed": str(torch.initial_seed()),
        "float32 matmul precision": torch.get_float32_matmul_precision(),
        "deterministic algorithms": "yes" if torch.are_deterministic_algorithms_enabled() else "no",
    }
    commit = checked_out(Path.cwd())
    return found if commit is None else found | {"git commit": commit}


def _installed(name: str) -> bool:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def _shortest(file: str | None) -> str | None:
    """Relative to where the run was started, if it lies there: as people write it."""
    if file is None or not Path(file).is_relative_to(Path.cwd()):
        return file
    return str(Path(file).relative_to(Path.cwd()))


def _describe(path: str, kind: type) -> ModuleInfo:
    try:
        file = _shortest(inspect.getsourcefile(kind))
        line = inspect.getsourcelines(vars(kind).get("forward", kind))[1]
        source = f"{file}:{line}" if file else ""
    except (OSError, TypeError):
        source = ""
    return ModuleInfo(path=path, class_name=kind.__qualname__, source=source)
