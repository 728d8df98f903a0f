"""Programs whose modules use what nobody has a gradient of: masks, and buffers that steps move."""

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
    Program(
        name="running-mean",
        style="buffers",
        reference=Run("running_mean"),
        candidate=Run("running_mean", ranks=2),
        steps=3,
    ),
)

WRONG = (
    Wrong(
        name="running-mean/of-each-rank",
        program="running-mean",
        title="every rank keeps the mean of its own samples",
        edits=(Edit("        dist.all_reduce(batch)\n        batch = batch / world\n", ""),),
        expected=(Blame.of("0", phase=Phase.BUFFER),),
    ),
    Wrong(
        name="running-mean/sum",
        program="running-mean",
        title="the sum over ranks is taken for the mean",
        edits=(Edit("        batch = batch / world\n", ""),),
        expected=(Blame.of("0", phase=Phase.BUFFER),),
    ),
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
        edits=(Edit("causal = place[:, None]", "causal = place[:, None] + rank"),),
        expected=(_MODEL,),
    ),
)
