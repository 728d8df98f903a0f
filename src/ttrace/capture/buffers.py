"""Which buffers of a model do steps change? Running statistics, counters, histories of scales."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
import xxhash

from ttrace.adapters.base import Adapter
from ttrace.capture.context import StepContext
from ttrace.capture.overwrite import Overwriter
from ttrace.core.ids import Kind
from ttrace.trace.payload import tensor_bytes


class Buffers:
    """Remembers a digest of every buffer: kernels change running statistics unseen by autograd."""

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
