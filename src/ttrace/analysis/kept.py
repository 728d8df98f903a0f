"""A logical tensor that is kept as codes and scales, looked at and exported as both.

Enters: a tensor that was put together from shards, and the bytes of its trace. Leaves: what codes
and scales are, and the scales as one grid: that of the largest blocks in which each has one scale,
whatever blocks the ranks have.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from ttrace.core.logical import LogicalTensor
from ttrace.core.quantised import KeptView, QuantisedForm, largest_code
from ttrace.trace.blocks import BlockReader, blocks
from ttrace.trace.quantised import Aspect, codes_dtype, form_of, kept_records, reading
from ttrace.trace.spans import SpanReader

_ASPECTS = (Aspect.CODES, Aspect.SCALES)


class KeptTensors(NamedTuple):
    """Codes as the numbers that they are, and a scale for each block."""

    codes: Tensor
    scales: Tensor


def view_kept(tensor: LogicalTensor, spans: SpanReader) -> KeptView | None:
    """None where it is not kept so everywhere, or in several formats."""
    form = _common_form(tensor)
    if form is None or not tensor.volume:
        return None
    codes_of, scales_of = (BlockReader(spans, reading(each)) for each in _ASPECTS)
    top = largest_code(form.codes)
    zeros, largest, low, high = 0, 0, math.inf, -math.inf
    for start, stop in blocks(tensor.shape):
        codes = codes_of.read(tensor.pieces, tensor.shape, start, stop)
        scales = scales_of.read(tensor.pieces, tensor.shape, start, stop)
        zeros += int((codes == 0).sum())
        largest += int((codes.abs() >= top).sum())
        low, high = min(low, float(scales.min())), max(high, float(scales.max()))
    return KeptView(
        codes=form.codes,
        scales=form.scales,
        block=common_block(tensor),
        zeros=zeros,
        largest=largest,
        lowest_scale=low,
        highest_scale=high,
    )


def read_kept(tensor: LogicalTensor, spans: SpanReader) -> KeptTensors | None:
    """All codes and scales, where they are of one format."""
    form = _common_form(tensor)
    if form is None:
        return None
    codes, scales = (_whole(tensor, BlockReader(spans, reading(each))) for each in _ASPECTS)
    steps = tuple(slice(None, None, size) for size in common_block(tensor))
    return KeptTensors(codes=codes.to(codes_dtype(form)), scales=scales[steps].clone())


def common_block(tensor: LogicalTensor) -> tuple[int, ...]:
    """The largest block whose edges, repeated, are at those of all ranks' blocks."""
    return tuple(_common_size(tensor, dim) or max(1, s) for dim, s in enumerate(tensor.shape))


def _common_size(tensor: LogicalTensor, dim: int) -> int:
    """0 where no scale ends inside of this dim."""
    size = 0
    for piece, record in zip(tensor.pieces, kept_records(tensor), strict=True):
        block, held, offset = form_of(record).block[dim], record.shape[dim], 0
        for run in piece.layout.runs[dim]:
            if run.start is not None:
                size = math.gcd(size, run.start)
                size = math.gcd(size, block, offset) if block < held else size
            offset += run.length
    return size


def _common_form(tensor: LogicalTensor) -> QuantisedForm | None:
    forms = [form_of(record) for record in kept_records(tensor)]
    return forms[0] if len({(form.codes, form.scales) for form in forms}) == 1 else None


def _whole(tensor: LogicalTensor, reader: BlockReader) -> Tensor:
    whole = torch.empty(tensor.shape)
    for start, stop in blocks(tensor.shape):
        box = tuple(slice(low, high) for low, high in zip(start, stop, strict=True))
        whole[box] = reader.read(tensor.pieces, tensor.shape, start, stop)
    return whole
