"""Pipelines of torch.distributed.pipelining, also those that split backward in two."""

from __future__ import annotations

from ttrace.core.blame import Blame, Phase, Stage
from zoo.programs.program import Edit, Program, Run, Wrong

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

WRONG = (
    Wrong(
        name="zbv/loss-of-a-microbatch",
        program="zbv",
        title="the loss is not divided by the number of microbatches",
        edits=(Edit("F.mse_loss(a, b) / (4 * runs)", "F.mse_loss(a, b) / runs"),),
        expected=(Blame.at(Stage.GRADIENT_REDUCTION, Phase.MAIN_GRADIENT),),
    ),
    Wrong(
        name="interleaved/one-block",
        program="interleaved",
        title="the third block scales what it adds",
        edits=(Edit("x = x + block(x)", "x = x + (1.01 if 'c' in self.blocks else 1) * block(x)"),),
        expected=(Blame.of("", phase=Phase.FORWARD),),
    ),
    Wrong(
        name="interleaved-zero-bubble/one-block",
        program="interleaved-zero-bubble",
        title="the third block scales what it adds",
        edits=(Edit("x = x + block(x)", "x = x + (1.01 if 'c' in self.blocks else 1) * block(x)"),),
        expected=(Blame.of("", phase=Phase.FORWARD),),
    ),
    Wrong(
        name="dual-pipe-v/fresh-stage",
        program="dual-pipe-v",
        title="the last stage keeps the weights that it was made with",
        edits=(Edit("part.load_state_dict(", "number == 3 or part.load_state_dict("),),
        expected=(Blame.of("blocks.d", phase=Phase.PARAMETERS),),
    ),
)
