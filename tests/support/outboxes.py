"""A trace with its outbox, and records to put into it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from ttrace.capture.outbox import Outbox
from ttrace.core.ids import TensorId
from ttrace.core.record import RankInfo, Record, Summary
from ttrace.trace.dtypes import dtype_name
from ttrace.trace.reader import Trace
from ttrace.trace.spans import SpanReader
from ttrace.trace.writer import TraceWriter


def record_of(number: int, tensor: torch.Tensor) -> Record:
    return Record(
        id=TensorId.parse(f"step0/m{number}:output.0"),
        rank=0,
        sequence=number,
        dtype=dtype_name(tensor.dtype),
        shape=tuple(tensor.shape),
    )


class Traced:
    """A trace, its outbox, and what can be read of it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.writer = TraceWriter(folder, RankInfo(rank=0, world_size=1))
        self.box = Outbox(self.writer)

    def put(self, number: int, tensor: torch.Tensor, **how: Any) -> Any:
        return self.box.put(record_of(number, tensor), tensor, **how)

    def close(self) -> None:
        self.writer.close(Summary(steps=1, hooks_expected=0, hooks_fired=0))

    def records(self) -> tuple[Record, ...]:
        return tuple(Trace.open(self._folder).ranks[0].records)

    def values(self) -> list[torch.Tensor]:
        with SpanReader(self._folder) as spans:
            return [spans.load(record) for record in self.records()]
