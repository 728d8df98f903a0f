"""Models whose input is a DTensor that is split over ranks."""

from __future__ import annotations

from ttrace.core.blame import Blame, Phase, Stage
from zoo.programs.program import Edit, Program, Run, Wrong

_UNEVEN = (Edit("LENGTH = 8", "LENGTH = 7"),)

PROGRAMS = (
    Program(
        name="sharded-batch",
        style="sharded inputs",
        reference=Run("sharded_batch"),
        candidate=Run("sharded_batch", ranks=2),
        steps=2,
    ),
    Program(
        name="sharded-sequence",
        style="sharded inputs",
        reference=Run("sharded_sequence"),
        candidate=Run("sharded_sequence", ranks=2),
        steps=2,
    ),
    Program(
        name="sharded-sequence-uneven",
        style="sharded inputs",
        reference=Run("sharded_sequence", edits=_UNEVEN),
        candidate=Run("sharded_sequence", ranks=2, edits=_UNEVEN),
        steps=2,
    ),
)

WRONG = (
    Wrong(
        name="sharded-batch/part-of-the-loss",
        program="sharded-batch",
        title="the loss is divided by the number of this rank's elements",
        edits=(Edit(".sum() / 32", ".sum() / y.to_local().numel()"),),
        expected=(Blame.at(Stage.LOSS, Phase.FORWARD),),
    ),
    Wrong(
        name="sharded-sequence/mean-of-shards",
        program="sharded-sequence",
        title="a mean loss of torch over a sharded DTensor: its gradient is too large",
        edits=(Edit("model(x).redistribute(placements=[Replicate()])", "model(x)"),),
        expected=(Blame.at(Stage.LOSS, Phase.BACKWARD),),
    ),
)
