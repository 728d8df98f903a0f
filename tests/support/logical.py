"""Logical tensors on disk: given parts with their layouts, written as a trace and put together."""

from __future__ import annotations

from pathlib import Path

import torch

from ttrace.core.ids import TensorId
from ttrace.core.layout import Layout
from ttrace.core.logical import LogicalTensor, Piece, assemble
from ttrace.core.record import RankInfo, Record, Summary
from ttrace.trace.dtypes import dtype_name
from ttrace.trace.reader import Trace
from ttrace.trace.writer import TraceWriter

ID = TensorId.parse("step0/a:param.weight")

Parts = dict[int, tuple[Layout, torch.Tensor]]


def write_logical(folder: Path, parts: Parts) -> LogicalTensor:
    """What these ranks hold of one tensor."""
    for rank, (layout, values) in parts.items():
        writer = TraceWriter(folder, RankInfo(rank=rank, world_size=len(parts)))
        record = Record(
            id=ID,
            rank=rank,
            sequence=0,
            dtype=dtype_name(values.dtype),
            shape=tuple(values.shape),
            layout=layout,
        )
        writer.write(record, values)
        writer.close(Summary(steps=1, hooks_expected=0, hooks_fired=0))
    pieces = []
    for record in Trace.open(folder).by_id()[ID]:
        assert record.layout is not None
        pieces.append(Piece(layout=record.layout, records=(record,)))
    return assemble(pieces[0].layout.shape, pieces)
