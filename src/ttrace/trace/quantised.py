"""The payload of quantised tensors: their codes, then the scales, then the scale of all scales.

Enters: codes and scales as a framework keeps them, and how they belong together. Leaves: their
bytes, bit for bit; later the values that they stand for, or codes and scales by themselves, element
by element, in memory that grows with what is asked for. No run asks for it by name: an adapter
knows which tensors are kept so.

    value = code x scale              in float32, then in the dtype of the tensor
    value = code / scale              where the form says that it divides
    value = code x (overall x scale)  where there is one
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from enum import Enum, auto
from typing import NamedTuple

import torch
from torch import Tensor

from ttrace.core.door import from_dict, to_dict
from ttrace.core.formats import format_of, values_of
from ttrace.core.logical import LogicalTensor
from ttrace.core.quantised import INT8, OVERALL_BYTES, QuantisedForm
from ttrace.core.record import PayloadRef, Record
from ttrace.trace.dtypes import safetensors_name, torch_dtype
from ttrace.trace.payload import Decoder, Span, flat_bytes

QUANTISED_NAME = "quantised"
_FORMS_KEPT = 1 << 10  # chosen: of a step of a large model there are a few dozen


class Quantised(NamedTuple):
    """A tensor that is kept as codes and scales, which may be on any device.

    `codes` has the shape of the tensor: numbers of a byte, or uint8 with a code of 4 bits in each.
    `scales` has a number for each block, and as many dims.
    """

    form: QuantisedForm
    codes: Tensor
    scales: Tensor
    overall: Tensor | None = None

    def permuted(self, dims: Sequence[int]) -> Quantised:
        """The same tensor with its dims in another order."""
        form = QuantisedForm(
            codes=self.form.codes,
            scales=self.form.scales,
            block=tuple(self.form.block[dim] for dim in dims),
            divides=self.form.divides,
            has_overall=self.form.has_overall,
        )
        return Quantised(form, self.codes.permute(*dims), self.scales.permute(*dims), self.overall)

    def described(self) -> PayloadRef:
        return _described(self.form)

    def packed(self) -> Tensor:
        """All bytes, where the codes are."""
        codes = flat_bytes(self.codes.detach().contiguous())
        if self.form.code_bits == 4:
            pairs = torch.nn.functional.pad(codes, (0, len(codes) % 2)).view(-1, 2)
            codes = pairs[:, 0] | pairs[:, 1] << 4
        parts = (self.scales, self.overall)
        rest = [flat_bytes(part.detach().contiguous()) for part in parts if part is not None]
        return torch.cat([codes, *rest])


class Aspect(Enum):
    """What is read of a quantised tensor, for each of its elements."""

    VALUES = auto()
    CODES = auto()  # the numbers that codes are by themselves
    SCALES = auto()  # by what they are multiplied


class QuantisedDecoder(Decoder):
    """Reads one aspect of quantised tensors; their values are what a record of them gives."""

    name = QUANTISED_NAME

    def __init__(self, aspect: Aspect = Aspect.VALUES) -> None:
        self._aspect = aspect

    def size_bytes(self, record: Record) -> int:
        if format_of(record.dtype) is None:
            raise ValueError(f"codes and scales are of floating numbers, not of {record.dtype}")
        return form_of(record).size_bytes(record.shape)

    def read_dtype(self, record: Record) -> torch.dtype:
        return torch_dtype(record.dtype) if self._aspect is Aspect.VALUES else torch.float32

    def read(self, span: Span) -> Tensor:
        form, shape = form_of(span.record), span.record.shape or (1,)
        done = 0
        for box in _boxes(shape, span.first, len(span.room)):
            room = span.room[done : done + math.prod(box.sizes)].view(box.sizes)
            done += room.numel()
            room.copy_(self._box(span, form, shape, box))
        return span.room

    def _box(self, span: Span, form: QuantisedForm, shape: tuple[int, ...], box: _Box) -> Tensor:
        if self._aspect is Aspect.SCALES:
            scales = _scales(span, form, shape, box)
            return scales.reciprocal() if form.divides else scales
        codes = _codes(span, form, box.first, math.prod(box.sizes)).view(box.sizes)
        if self._aspect is Aspect.CODES:
            return codes
        scales = _scales(span, form, shape, box)
        return codes.div_(scales) if form.divides else codes.mul_(scales)


QUANTISED = QuantisedDecoder()
_BY_ASPECT = {Aspect.VALUES: QUANTISED} | {
    aspect: QuantisedDecoder(aspect) for aspect in (Aspect.CODES, Aspect.SCALES)
}


def decoder_of(aspect: Aspect) -> QuantisedDecoder:
    return _BY_ASPECT[aspect]


def form_of(record: Record) -> QuantisedForm:
    """How a record is quantised; ValueError where its parameters cannot be."""
    return _form(record.payload)


def is_quantised(record: Record) -> bool:
    return record.payload is not None and record.payload.name == QUANTISED_NAME


def reading(aspect: Aspect) -> Callable[[Record], Decoder]:
    """Who reads this aspect, for a reader of blocks of tensors that are all kept so."""
    return lambda record: decoder_of(aspect)


def kept_records(tensor: LogicalTensor) -> tuple[Record, ...]:
    """Those of its parts; none where one is not kept so, or is a term of a sum."""
    if not len(tensor.pieces) or not is_quantised(tensor.pieces[0].records[0]):
        return ()  # nearly always: the pieces of thousands of ranks are not made for it
    found = tuple(piece.records[0] for piece in tensor.pieces)
    are_plain = all(len(piece.records) == 1 and piece.factor == 1 for piece in tensor.pieces)
    return found if are_plain and all(map(is_quantised, found)) else ()


def codes_dtype(form: QuantisedForm) -> torch.dtype:
    """The dtype of codes by themselves; bfloat16 holds those that other programs cannot name."""
    return torch_dtype(form.codes) if safetensors_name(form.codes) else torch.bfloat16


@functools.lru_cache(_FORMS_KEPT)
def _form(payload: PayloadRef | None) -> QuantisedForm:
    return from_dict(QuantisedForm, {} if payload is None else dict(payload.parameters))


@functools.lru_cache(_FORMS_KEPT)
def _described(form: QuantisedForm) -> PayloadRef:
    return PayloadRef(name=QUANTISED_NAME, parameters=to_dict(form))


class _Box(NamedTuple):
    """Elements that follow each other: one index of leading dims, a range of one, all of others."""

    first: int
    dim: int
    start: tuple[int, ...]  # of the dims up to `dim`
    sizes: tuple[int, ...]  # of the dims from `dim` on


def _boxes(shape: tuple[int, ...], first: int, count: int) -> Iterator[_Box]:
    strides = [math.prod(shape[dim + 1 :]) for dim in range(len(shape))]
    while count:
        dim = next(d for d, size in enumerate(strides) if first % size == 0 and count >= size)
        pairs = zip(strides[: dim + 1], shape, strict=False)
        start = tuple(first // stride % size for stride, size in pairs)
        length = min(shape[dim] - start[dim], count // strides[dim])
        yield _Box(first, dim, start, (length, *shape[dim + 1 :]))
        first, count = first + length * strides[dim], count - length * strides[dim]


def _codes(span: Span, form: QuantisedForm, first: int, count: int) -> Tensor:
    if form.code_bits == 8:
        found = _bytes(span, first, count)
    else:
        pairs = _bytes(span, first // 2, (first + count + 1) // 2 - first // 2)
        found = torch.stack((pairs & 15, pairs >> 4), 1).flatten()[first % 2 :][:count]
    return _table(form.codes)[found.int()]


def _scales(span: Span, form: QuantisedForm, shape: tuple[int, ...], box: _Box) -> Tensor:
    """Those of a box, as they may be met with its elements; each block in it has one at least."""
    blocks = form.block or (1,)
    grid = form.grid(span.record.shape) or (1,)
    low = [at // block for at, block in zip(box.start, blocks, strict=False)]
    last = (box.start[box.dim] + box.sizes[0] - 1) // blocks[box.dim]
    first = 0
    for at, size in zip(low, grid, strict=False):
        first = first * size + at
    trailing = math.prod(grid[box.dim + 1 :])
    held = (last - low[box.dim] + 1, *grid[box.dim + 1 :])
    found = _numbers(span, form, first * trailing, math.prod(held)).view(held)
    for dim, (size, block) in enumerate(zip(box.sizes, blocks[box.dim :], strict=True)):
        if found.shape[dim] > 1:
            offset = box.start[box.dim] if dim == 0 else 0
            index = torch.arange(offset, offset + size) // block - offset // block
            found = found.index_select(dim, index)
    if not form.has_overall:
        return found
    data = _bytes(span, form.size_bytes(span.record.shape) - OVERALL_BYTES, OVERALL_BYTES)
    return data.view(torch.float32) * found


def _numbers(span: Span, form: QuantisedForm, first: int, count: int) -> Tensor:
    at = form.codes_bytes(span.record.shape) + first * form.scale_bytes
    data = _bytes(span, at, count * form.scale_bytes)
    if form.scale_bytes == 1:
        return _table(form.scales)[data.int()]
    return data.view(torch_dtype(form.scales)).float()


def _bytes(span: Span, start: int, size: int) -> Tensor:
    return torch.frombuffer(span.bytes(start, size), dtype=torch.uint8)


@functools.cache
def _table(name: str) -> Tensor:
    """What every code of at most a byte is."""
    if name == INT8:
        return torch.arange(256).to(torch.uint8).view(torch.int8).float()
    return torch.tensor(values_of(name), dtype=torch.float32)
