"""How parameters are updated: closures, by hand, by several optimizers, inside backward."""

from __future__ import annotations

from ttrace.core.blame import Blame, Phase, Stage
from zoo.programs.program import Edit, Wrong, on_ranks

_STYLE = "updates"


_IN_DATA = Edit("p -= lr * p.grad", "p.data.add_(p.grad, alpha=-lr)")

PROGRAMS = (
    on_ranks("closure", _STYLE, "closure_ddp"),
    on_ranks("lbfgs", _STYLE, "lbfgs_ddp", steps=1),
    on_ranks("by-hand", _STYLE, "by_hand"),
    on_ranks(
        "by-hand-data",
        _STYLE,
        "by_hand",
        Edit("p -= lr * p.grad", "p.data.add_(p.grad, alpha=-lr)"),
    ),
    on_ranks("saturated", _STYLE, "saturated"),
    on_ranks("causal-mask", _STYLE, "causal_mask"),
    on_ranks("zero-redundancy", _STYLE, "zero_redundancy"),
    on_ranks("in-backward", _STYLE, "in_backward"),
)

_STATE = (Blame.at(Stage.OPTIMIZER_STEP, Phase.STATE),)
_UPDATE = (Blame.at(Stage.OPTIMIZER_STEP, Phase.UPDATE),)

WRONG = (
    Wrong(
        name="closure/clip",
        program="closure",
        title="the closure clips to a norm that was divided among the ranks",
        edits=(Edit("model.parameters(), 0.5)", "model.parameters(), 0.5 / world)"),),
        expected=(Blame.at(Stage.GRADIENT_CLIPPING, Phase.CLIP),),
    ),
    Wrong(
        name="closure/lr",
        program="closure",
        title="a learning rate that was scaled with the ranks",
        edits=(Edit("lr=1e-3", "lr=1e-3 * world"),),
        expected=_UPDATE,
    ),
    Wrong(
        name="lbfgs/lr",
        program="lbfgs",
        title="a learning rate that was scaled with the ranks",
        edits=(Edit("lr=0.5", "lr=0.5 / world"),),
        expected=_STATE,
    ),
    Wrong(
        name="by-hand/rate",
        program="by-hand",
        title="a learning rate that was scaled with the ranks",
        edits=(Edit("lr = 0.1", "lr = 0.1 * world"),),
        expected=_UPDATE,
    ),
    Wrong(
        name="by-hand/sum",
        program="by-hand",
        title="gradients are summed over ranks and not averaged",
        edits=(Edit("            p.grad /= world\n", ""),),
        expected=(Blame.at(Stage.GRADIENT_REDUCTION, Phase.MAIN_GRADIENT),),
    ),
    Wrong(
        name="by-hand-data/one-rank",
        program="by-hand-data",
        title="only rank 0 updates its parameters",
        edits=(
            Edit(
                "        with torch.no_grad():\n",
                "        with torch.no_grad():\n            lr = 0.1 * (rank == 0)\n",
            ),
        ),
        expected=_UPDATE,
    ),
    Wrong(
        name="saturated/momentum",
        program="saturated",
        title="another momentum",
        edits=(Edit("momentum=0.9", "momentum=0.9 / world"),),
        expected=_STATE,
    ),
    Wrong(
        name="causal-mask/shifted",
        program="causal-mask",
        title="the mask also hides the diagonal's neighbour on rank 1",
        edits=(
            Edit(
                "model(tokens[:, :-1], mask)",
                "model(tokens[:, :-1], mask.roll(rank, 0))",
            ),
        ),
        expected=(Blame.at(Stage.MODEL_INPUT, Phase.INPUTS),),
    ),
    Wrong(
        name="zero-redundancy/lr",
        program="zero-redundancy",
        title="the learning rate is three times the reference's",
        edits=(Edit("lr=1e-3", "lr=3e-3"),),
        expected=_UPDATE,
    ),
    Wrong(
        name="in-backward/lr",
        program="in-backward",
        title="the learning rate is three times the reference's",
        edits=(Edit("lr=1e-3", "lr=3e-3"),),
        expected=_UPDATE,
    ),
)
