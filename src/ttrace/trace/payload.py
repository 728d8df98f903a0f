"""Payloads: the forms in which the bytes of a record hold its tensor.

Enters: a record with its tensor, in a training run; later a span of a record, in a check. Leaves:
the bytes to be stored; later values. Every payload but the full one comes from a package that
names a class in the entry point group `ttrace.payloads`:

    [project.entry-points."ttrace.payloads"]
    int8_blocks = "my_package:Int8Blocks"

It must not know where bytes are stored, nor what values are compared with.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar, NamedTuple, Protocol

import torch

from ttrace.core.record import Record
from ttrace.trace.dtypes import torch_dtype


class Fetch(Protocol):
    """Reads bytes of a record, as `SpanReader.read` does."""

    def __call__(
        self, record: Record, start: int, size: int, into: memoryview | None
    ) -> memoryview: ...


Later = Callable[[], memoryview]  # gives bytes that a device is still computing


class Span(NamedTuple):
    """Elements first : first + len(room) of a record, its dims flattened in row-major order.

    `room` is memory that the values may be put into; it has the dtype that `read_dtype` names.
    """

    record: Record
    first: int
    room: torch.Tensor
    fetch: Fetch

    def bytes(self, start: int, size: int, into: memoryview | None = None) -> memoryview:
        """Bytes start : start + size of the record, at the front of `into` or in new memory."""
        return self.fetch(self.record, start, size, into)


class Decoder(ABC):
    """Reads what records hold in one form. A class without state."""

    name: ClassVar[str]

    @abstractmethod
    def size_bytes(self, record: Record) -> int:
        """How many bytes such a record must have; ValueError where its parameters cannot be."""

    def read_dtype(self, record: Record) -> torch.dtype:
        """The dtype of the values that `read` gives."""
        return torch.float32

    @abstractmethod
    def read(self, span: Span) -> torch.Tensor:
        """The values of a span, flat."""


class Payload(Decoder):
    """One form of storing tensors."""

    on_device: ClassVar[bool] = False  # whether `encode` gets tensors before they come to the CPU

    def takes(self, tensor: torch.Tensor, *, asked: bool) -> bool:
        """Whether this tensor is stored so; `asked`: the run asked for this payload by its name.

        A payload for a class of quantised tensors takes those, asked or not.
        """
        return asked and tensor.is_floating_point()

    @abstractmethod
    def encode(self, record: Record, tensor: torch.Tensor) -> tuple[Record, memoryview | Later]:
        """The record as the journal shall have it, and the bytes of the tensor.

        Where a device computes them, or where they are few, a function that gives them: it is
        called once, when the step is over, or earlier by who wants them at once; those of a step in
        the order of their calls, and they are written in one piece.
        Its `payload` names this class and what `read` must know. Its dtype says how fine the values
        are, its shape and layout what a read gives; all three are those of the tensor beforehand.
        """

    def end_step(self) -> None:
        """A step is over, and all that was encoded in it is stored."""
        return


class FullPayload(Payload):
    """Every element as it stands in memory: the default."""

    name = "full"

    def takes(self, tensor: torch.Tensor, *, asked: bool) -> bool:
        return True

    def encode(self, record: Record, tensor: torch.Tensor) -> tuple[Record, memoryview]:
        return record, tensor_bytes(tensor)

    def size_bytes(self, record: Record) -> int:
        return math.prod(record.shape) * torch_dtype(record.dtype).itemsize

    def read_dtype(self, record: Record) -> torch.dtype:
        return torch_dtype(record.dtype)

    def read(self, span: Span) -> torch.Tensor:
        item, room = span.room.itemsize, span.room.view(torch.uint8).numpy().data
        span.bytes(span.first * item, room.nbytes, room)
        return span.room


FULL = FullPayload()


def tensor_bytes(tensor: torch.Tensor) -> memoryview:
    """The memory of a CPU tensor in row-major order; copied only when it is not contiguous."""
    # numpy knows neither bf16 nor fp8.
    return flat_bytes(tensor.detach().resolve_conj().resolve_neg().contiguous()).numpy().data


def flat_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The memory of a contiguous tensor of any device, also of one element with odd strides."""
    return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)
