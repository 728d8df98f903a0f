"""Programs that are hard to isolate: masks, buffers that steps move, modules that check objects."""

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
    Program(
        name="remembered",
        style="isolation",
        reference=Run("remembered"),
        candidate=Run("remembered", ranks=2),
        notes=("coarser",),
    ),
)

WRONG = (
    Wrong(
        name="remembered/scale-of-one-block",
        program="remembered",
        title="the second block has another scale",
        edits=(Edit("[0.5, 0.25, 0.125]", "[0.5, 0.2, 0.125]"),),
        expected=(Blame.of("blocks.1", phase=Phase.FORWARD),),
    ),
    Wrong(
        name="remembered/gradient-of-one-rank",
        program="remembered",
        title="rank 1 passes half of a gradient back",
        edits=(
            Edit(
                "self.down(hidden.relu())",
                "self.down(hidden.relu() if rank == 0 or self.scale != 0.25 else "
                "(hidden / 2 + hidden.detach() / 2).relu())",
            ),
        ),
        expected=(Blame.of("blocks.1", phase=Phase.BACKWARD),),
    ),
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
