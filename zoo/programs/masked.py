"""Programs whose modules are given masks: booleans that nobody has a gradient of."""

from __future__ import annotations

from ttrace.core.blame import Blame, Phase
from zoo.programs.program import Edit, Program, Run, Wrong

_MODEL = Blame.of("", phase=Phase.FORWARD)

PROGRAMS = (
    Program(
        name="masked-attention",
        style="masks",
        reference=Run("masked_attention"),
        candidate=Run("masked_attention", ranks=2),
        steps=2,
    ),
)

WRONG = (
    Wrong(
        name="masked-attention/padding-of-one-rank",
        program="masked-attention",
        title="rank 1 compares its lengths with <= and sees one place of padding",
        edits=(Edit("< lengths[:, None]", "< lengths[:, None] + rank"),),
        expected=(_MODEL,),
    ),
    Wrong(
        name="masked-attention/one-place-ahead",
        program="masked-attention",
        title="rank 1 lets every place see the next one",
        edits=(
            Edit("place[:, None] >= place[None, :]", "place[:, None] + rank >= place[None, :]"),
        ),
        expected=(_MODEL,),
    ),
)
