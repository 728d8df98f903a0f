"""Pipelines of torch.distributed.pipelining, also those that split backward in two."""

from __future__ import annotations

from zoo.programs.program import Program, Run, Wrong

_SCHEDULES = {
    "interleaved": "ScheduleInterleaved1F1B",
    "interleaved-zero-bubble": "ScheduleInterleavedZeroBubble",
    "zbv": "ScheduleZBVZeroBubble",
    "dual-pipe-v": "ScheduleDualPipeV",
}


def _program(name: str, schedule: str, runs: int = 1) -> Program:
    words = (schedule, str(runs))
    return Program(
        name=name,
        style="pipelines",
        reference=Run("pipeline", words=words),
        candidate=Run("pipeline", ranks=2, words=words),
    )


PROGRAMS = (
    *(_program(name, schedule) for name, schedule in _SCHEDULES.items()),
    _program("interleaved-twice", "ScheduleInterleaved1F1B", runs=2),
)

WRONG: tuple[Wrong, ...] = ()
