"""The writer that is attacked: three steps of known records, of many sizes and several segments.

Enters: a folder, and shared memory. Leaves: a trace, and in the memory how far it came, which a
killed process cannot say any more.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cache, partial
from pathlib import Path

import torch

from ttrace.core.ids import TensorId
from ttrace.core.record import ModuleInfo, RankInfo, Record, Summary
from ttrace.errors import TTraceError
from ttrace.trace import writer as writing
from ttrace.trace.dtypes import dtype_name
from ttrace.trace.segment import SegmentWriter
from ttrace.trace.writer import TraceWriter

INFO = RankInfo(
    rank=0,
    world_size=1,
    modules=(ModuleInfo(path="", class_name="Linear", source="model.py:3"),),
)
STEPS = 3
# Nothing, a scalar, odd sizes, more than one block of a write (256 KiB), other dtypes.
_SIZES: tuple[tuple[torch.dtype, tuple[int, ...]], ...] = (
    (torch.float32, (0, 3)),
    (torch.float32, ()),
    (torch.bfloat16, (7, 9)),
    (torch.int64, (1000,)),
    (torch.bool, (33,)),
    (torch.float32, (80_000,)),
)
_SEGMENT_BYTES = 400_000  # so that every step fills one
_HEADER_BYTES = 1 << 14


class State(IntEnum):
    """How far the writer came with one action."""

    UNTRIED = 0
    TRIED = 1
    REFUSED = 2
    DONE = 3


class Ledger:
    """One byte for every action, in memory that outlives the process which writes it."""

    def __init__(self) -> None:
        self._bytes = mmap.mmap(-1, mmap.PAGESIZE)

    def note(self, action: int, state: int) -> None:
        self._bytes[action] = state

    def __getitem__(self, action: int) -> State:
        return State(self._bytes[action])

    @property
    def kept(self) -> range:
        """The steps that a writer found when it went on."""
        return range(self._bytes[-1])

    def keep(self, steps: Sequence[int]) -> None:
        assert list(steps) == list(range(len(steps))), steps
        self._bytes[-1] = len(steps)

    def close(self) -> None:
        self._bytes.close()


@dataclass(frozen=True, slots=True)
class Action:
    """A record with its tensor; one without is the end of a step, or in the end of the trace."""

    step: int
    record: Record | None = None
    tensor: torch.Tensor | None = None

    @property
    def is_end(self) -> bool:
        """Whether it is the end of a step."""
        return self.record is None and 0 <= self.step < STEPS


@cache
def actions() -> tuple[Action, ...]:
    """All that is written, in this order; the first is the making of the writer."""
    made = [Action(-1)]
    for step in range(STEPS):
        for number, (dtype, shape) in enumerate(_SIZES):
            values = torch.arange(torch.Size(shape).numel()).add(step + number).remainder(251)
            tensor = values.to(dtype).reshape(shape)
            record = Record(
                id=TensorId.parse(f"step{step}/:output.{number}"),
                rank=0,
                sequence=len(made),
                dtype=dtype_name(dtype),
                shape=shape,
            )
            made.append(Action(step, record, tensor))
        again = replace(
            record,
            id=TensorId.parse(f"step{step}/:grad_output.0"),
            same_as=record.id,
            sequence=len(made),
        )
        made += [Action(step, again, tensor), Action(step)]
    return (*made, Action(STEPS))


def write_trace(folder: Path, ledger: Ledger, *, resume: bool = False) -> None:
    """Write all of it, past what fails; what was recorded before is not written again."""
    small = partial(SegmentWriter, max_bytes=_SEGMENT_BYTES, header_bytes=_HEADER_BYTES)
    vars(writing)["SegmentWriter"] = small
    ledger.note(0, State.TRIED)
    try:
        writer = TraceWriter(folder, INFO, resume=resume)
    except (OSError, TTraceError):
        ledger.note(0, State.REFUSED)
        return
    ledger.keep(writer.steps)
    ledger.note(0, State.DONE)
    located: Record | None = None
    for number, action in enumerate(actions()[1:], start=1):
        if action.step in writer.steps:
            continue
        ledger.note(number, State.TRIED)
        try:
            located = _perform(writer, action, located)
        except (OSError, TTraceError):
            ledger.note(number, State.REFUSED)
            located = None
        else:
            ledger.note(number, State.DONE)


def _perform(writer: TraceWriter, action: Action, before: Record | None) -> Record | None:
    if action.record is None and action.step == STEPS:
        writer.close(Summary(steps=STEPS, hooks_expected=0, hooks_fired=0))
    elif action.record is None:
        writer.end_step(action.step)
    elif action.record.same_as is None:
        assert action.tensor is not None
        return writer.write(action.record, action.tensor)
    elif before is None:
        raise OSError("the tensor that it shares was not written")
    else:
        assert before.location is not None
        writer.note(action.record.at(before.location))
    return None
