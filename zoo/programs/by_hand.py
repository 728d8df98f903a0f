"""Parallelism written by hand, of which shapes alone do not tell how it splits."""

from __future__ import annotations

from ttrace.core.blame import Blame, Phase
from zoo.programs.program import Edit, Program, Run, Wrong

PROGRAMS = (
    Program(
        name="fused-qkv-by-hand",
        style="by hand",
        reference=Run("fused_qkv_by_hand"),
        candidate=Run("fused_qkv_by_hand", ranks=2),
        steps=2,
    ),
)

WRONG = (
    Wrong(
        name="fused-qkv-by-hand/plain-chunk",
        program="fused-qkv-by-hand",
        title="the fused weight is loaded in plain chunks, not in those of each section",
        edits=(
            Edit("[part.chunk(world)[rank] for part in qkv.chunk(3)]", "[qkv.chunk(world)[rank]]"),
        ),
        expected=(Blame.of("attention", phase=Phase.PARAMETERS),),
    ),
    Wrong(
        name="fused-qkv-by-hand/no-all-reduce",
        program="fused-qkv-by-hand",
        title="the gradient of the attention's input is not summed over ranks",
        edits=(Edit("        x = Copy.apply(x)\n", ""),),
        expected=(Blame.of("attention", phase=Phase.BACKWARD),),
    ),
)
