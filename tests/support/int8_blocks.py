"""A payload as another package would bring it: int8 numbers in blocks, each with its own scale."""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from ttrace.core.record import PayloadRef, Record
from ttrace.trace.payload import Payload, Span, tensor_bytes

BLOCK = 32


class Int8Blocks(Payload):
    """All elements as int8, then the float32 scales of their blocks."""

    name = "int8_blocks"

    def encode(self, record: Record, tensor: torch.Tensor) -> tuple[Record, memoryview]:
        count = tensor.numel()
        padded = torch.zeros(_blocks(count, BLOCK) * BLOCK)
        padded[:count] = tensor.detach().reshape(-1)
        blocks = padded.view(-1, BLOCK)
        scales = blocks.abs().amax(dim=1).clamp_min(1e-30) / 127
        quantised = (blocks / scales[:, None]).round().to(torch.int8).view(-1)[:count]
        data = bytes(tensor_bytes(quantised)) + bytes(tensor_bytes(scales))
        reference = PayloadRef(name=self.name, parameters={"block": BLOCK})
        return replace(record, payload=reference), memoryview(data)

    def size_bytes(self, record: Record) -> int:
        count = math.prod(record.shape)
        return count + 4 * _blocks(count, _block(record))

    def read(self, span: Span) -> torch.Tensor:
        block, count = _block(span.record), len(span.room)
        if not count:
            return span.room
        first_block, last_block = span.first // block, (span.first + count - 1) // block
        scales_at = math.prod(span.record.shape) + 4 * first_block
        data = torch.frombuffer(span.bytes(span.first, count), dtype=torch.int8)
        scales = torch.frombuffer(
            span.bytes(scales_at, 4 * (last_block - first_block + 1)), dtype=torch.float32
        )
        skipped = span.first - first_block * block
        return data * scales.repeat_interleave(block)[skipped : skipped + count]


def _block(record: Record) -> int:
    block = 0 if record.payload is None else record.payload.parameters["block"]
    if type(block) is not int or block < 1:
        raise ValueError(f"a block of {block!r} elements cannot be")
    return block


def _blocks(count: int, block: int) -> int:
    return -(-count // block)
