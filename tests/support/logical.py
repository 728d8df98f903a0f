"""Logical tensors on disk: given parts with their layouts, written as a trace and put together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch

from ttrace.core.ids import TensorId
from ttrace.core.layout import Layout
from ttrace.core.logical import LogicalTensor, Piece, assemble
from ttrace.core.record import RankInfo, Record, Summary
from ttrace.trace.dtypes import dtype_name
from ttrace.trace.payload import tensor_bytes
from ttrace.trace.quantised import Quantised
from ttrace.trace.reader import Trace
from ttrace.trace.writer import TraceWriter

ID = TensorId.parse("step0/a:param.weight")

Parts = dict[int, tuple[Layout, torch.Tensor]]


def write_logical(folder: Path, parts: Parts) -> LogicalTensor:
    """What these ranks hold of one tensor."""
    for rank, (layout, values) in parts.items():
        with _writer(folder, rank, len(parts)) as writer:
            writer.write(_record(rank, layout, values.dtype), values)
    return _assembled(folder)


def write_kept(
    folder: Path, parts: Mapping[int, tuple[Layout, Quantised]], dtype: torch.dtype = torch.float32
) -> LogicalTensor:
    """The same of a tensor that is kept as codes and scales."""
    for rank, (layout, kept) in parts.items():
        with _writer(folder, rank, len(parts)) as writer:
            data = tensor_bytes(kept.packed())
            reserved = writer.reserve(data.nbytes)
            reserved.write(data)
            record = _record(rank, layout, dtype).stored_as(kept.described())
            writer.note(writer.keep(record, reserved))
    return _assembled(folder)


@contextmanager
def _writer(folder: Path, rank: int, world_size: int) -> Iterator[TraceWriter]:
    writer = TraceWriter(folder, RankInfo(rank=rank, world_size=world_size))
    yield writer
    writer.close(Summary(steps=1, hooks_expected=0, hooks_fired=0))


def _record(rank: int, layout: Layout, dtype: torch.dtype) -> Record:
    return Record(
        id=ID,
        rank=rank,
        sequence=0,
        dtype=dtype_name(dtype),
        shape=layout.local_shape,
        layout=layout,
    )


def _assembled(folder: Path) -> LogicalTensor:
    pieces = []
    for record in Trace.open(folder).by_id()[ID]:
        assert record.layout is not None
        pieces.append(Piece(layout=record.layout, records=(record,)))
    return assemble(pieces[0].layout.shape, pieces)
