"""The payload of fingerprints: records that hold the sums of a tensor's cells instead of it.

Enters: a record with its tensor. Leaves: its fingerprint as bytes, and the cells as parameters of
the payload. Tensors of which a fingerprint would not be much smaller are stored whole, and so are
whole numbers and what is wider than float32.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from ttrace.core.ids import Kind
from ttrace.core.layout import Layout
from ttrace.core.record import PayloadRef, Record
from ttrace.errors import CannotCompare
from ttrace.measure.cells import FEWEST, LONGEST, Cells, PerDim, choose_cells
from ttrace.measure.fingerprint import SKETCHED, PrintForm, fingerprint_bytes, fingerprint_of
from ttrace.trace.dtypes import torch_dtype
from ttrace.trace.gpu import Arenas
from ttrace.trace.payload import FULL, Later, Payload, Span

NAME = "fingerprint"
_SMALLER = 4  # chosen: a tensor less than so many times larger than its fingerprint is kept
# Chosen: a first dim up to this long may be one of samples, which may lie anywhere in a batch.
_SAMPLES = 1024
_BYTES_OF_A_SUM = 4
_FORMS_KEPT = 4096  # chosen: of a step of a large model there are about a hundred
# What an optimizer makes its update of: how small its elements are tells what rounding may flip.
_WITH_EXPONENTS = frozenset({Kind.GRAD, Kind.MAIN_GRAD})


class FingerprintPayload(Payload):
    """Sums of cells; `fewest` sums are kept of every tensor."""

    name = NAME
    on_device = True

    def __init__(self, fewest: int = FEWEST) -> None:
        self._fewest = fewest
        self.arenas = Arenas()  # of GPUs, while a run is recorded

    def takes(self, tensor: torch.Tensor, *, asked: bool) -> bool:
        return asked and self._is_smaller(tensor.dtype, tensor.nbytes)

    def takes_record(self, record: Record) -> bool:
        """The same of a tensor that such a record would be of."""
        return self._is_smaller(torch_dtype(record.dtype), FULL.size_bytes(record))

    def stored_bytes(self, record: Record) -> int:
        """What such a record takes, whole or not."""
        if self.takes_record(record):
            return self.stored(record).form.size_bytes
        return FULL.size_bytes(record)

    def _is_smaller(self, dtype: torch.dtype, whole_bytes: int) -> bool:
        return dtype in SKETCHED and whole_bytes >= _SMALLER * _BYTES_OF_A_SUM * self._fewest

    def encode(self, record: Record, tensor: torch.Tensor) -> tuple[Record, Later]:
        if not has_memory(tensor):
            raise ValueError(f"a {type(tensor).__name__} that has no memory of its own to be read")
        stored = self.stored(record)
        described = record.stored_as(stored.described)
        if tensor.is_cuda:
            plain = tensor.resolve_neg() if tensor.is_neg() else tensor
            return described, self.arenas.of(tensor).fingerprint(plain.contiguous(), stored.form)
        wanted = stored.form.has_exponents
        data = fingerprint_of(tensor.cpu(), stored.cells, with_exponents=wanted).to_bytes()
        return described, lambda: memoryview(data)

    def end_step(self) -> None:
        self.arenas.end_step()

    def size_bytes(self, record: Record) -> int:
        cells, has_exponents = parameters_of(record)
        return fingerprint_bytes(record.shape, cells, has_exponents=has_exponents)

    def read(self, span: Span) -> torch.Tensor:
        raise CannotCompare(
            f"{span.record.id} of rank {span.record.rank} was recorded as a fingerprint: the trace "
            "has not its values; record with --capture full to have them"
        )

    def stored(self, record: Record) -> Stored:
        """How a record is stored, by its shape and what it knows of its place."""
        return _stored(
            record.shape,
            record.dtype,
            record.layout,
            _kept_dims(record),
            self._fewest,
            record.id.kind in _WITH_EXPONENTS,
        )


FINGERPRINT = FingerprintPayload()


def has_memory(tensor: torch.Tensor) -> bool:
    """Whether its elements are where it says: kernels read there, whatever a subclass computes."""
    return tensor.data_ptr() != 0 or not tensor.numel()


class Stored(NamedTuple):
    """The cells of a record, what is said of its bytes, and how a device makes them."""

    cells: Cells
    described: PayloadRef
    form: PrintForm


@functools.lru_cache(_FORMS_KEPT)
def _stored(
    shape: PerDim,
    dtype_name: str,
    layout: Layout | None,
    kept_dims: PerDim,
    fewest: int,
    has_exponents: bool,  # noqa: FBT001  (a cache of positions is quicker)
) -> Stored:
    runs = None
    if layout is not None:
        runs = [[(run.start, run.length) for run in dim] for dim in layout.runs]
    dtype = torch_dtype(dtype_name)
    cells = choose_cells(shape, dtype.itemsize, runs=runs, kept_dims=kept_dims, fewest=fewest)
    parameters: dict[str, Any] = {"cells": list(cells.sizes)}
    if any(cells.shifts):
        parameters["shifts"] = list(cells.shifts)
    if has_exponents:
        parameters["exponents"] = True
    return Stored(
        cells=cells,
        described=PayloadRef(name=NAME, parameters=parameters),
        form=PrintForm.of(shape, dtype, cells, has_exponents=has_exponents),
    )


def is_fingerprint(record: Record) -> bool:
    return record.payload is not None and record.payload.name == NAME


def parameters_of(record: Record) -> tuple[Cells, bool]:
    """The cells of a record, and whether it counts exponents; ValueError where they cannot be."""
    return _parameters(record.payload, len(record.shape))


@functools.lru_cache(maxsize=1 << 12)  # chosen: a model has few shapes, and so few parameters
def _parameters(payload: PayloadRef | None, dims: int) -> tuple[Cells, bool]:
    given = {} if payload is None else dict(payload.parameters)
    sizes = _whole_numbers(given.pop("cells", None), dims)
    shifts = _whole_numbers(given.pop("shifts", [0] * len(sizes)), len(sizes))
    has_exponents = given.pop("exponents", False)
    if given or has_exponents not in (True, False):
        raise ValueError("cells, shifts and exponents are what a fingerprint has")
    if any(not 0 < size <= LONGEST or size & (size - 1) for size in sizes):
        raise ValueError(f"cells have sizes that are powers of two up to {LONGEST}")
    if any(not 0 <= shift < size for shift, size in zip(shifts, sizes, strict=True)):
        raise ValueError("a shift lies inside of a cell")
    return Cells(sizes, shifts), has_exponents


def _whole_numbers(given: object, count: int) -> tuple[int, ...]:
    if not isinstance(given, Sequence) or len(given) != count:
        raise ValueError(f"a number for each of {count} dims is what cells and shifts have")
    if any(type(number) is not int for number in given):
        raise ValueError("cells and shifts are whole numbers")
    return tuple(given)


def _kept_dims(record: Record) -> tuple[int, ...]:
    """Dims along which cells are one index long, since what lies there may be put anywhere."""
    kind, shape = record.id.kind, record.shape
    if not (kind.is_activation or kind.is_gradient_of_activation):
        return ()
    if record.origin is not None and record.batch_dim is not None:
        return tuple(range(record.batch_dim + 1))  # tokens that were sent here, one by one
    if record.batch_dim is not None:
        return (record.batch_dim,) if record.batch_dim >= 0 else ()
    is_of_samples = len(shape) > 2 or (len(shape) == 2 and math.prod(shape[:1]) <= _SAMPLES)
    return (0,) if is_of_samples else ()
