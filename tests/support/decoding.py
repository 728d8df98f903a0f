"""Quantised tensors read back from the bytes that a trace keeps of them."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ttrace.core.ids import TensorId
from ttrace.core.record import Record
from ttrace.trace.payload import Span
from ttrace.trace.quantised import QUANTISED, Quantised


def decoded(kept: Quantised) -> Tensor:
    shape = tuple(kept.codes.shape)
    id_ = TensorId.parse("step0/a:output.0")
    record = Record(id=id_, rank=0, sequence=0, dtype="float32", shape=shape)
    record, data = record.stored_as(kept.described()), kept.packed().numpy().tobytes()
    assert len(data) == QUANTISED.size_bytes(record)
    span = Span(
        record,
        0,
        torch.empty(math.prod(shape)),
        lambda _, start, size, into: memoryview(bytearray(data[start : start + size])),
    )
    return QUANTISED.read(span).view(shape)
