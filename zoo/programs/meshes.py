"""Models that are sharded or split over a mesh, by torch and by hand."""

from __future__ import annotations

from ttrace.core.blame import Blame, Phase, Stage
from zoo.programs.program import Edit, Wrong, on_ranks

_STYLE = "sharded models"


PROGRAMS = (
    on_ranks("fsdp1", _STYLE, "fsdp1"),
    on_ranks("fsdp1-flat", _STYLE, "fsdp1", Edit("        use_orig_params=True,\n", "")),
    on_ranks("fsdp2", _STYLE, "fsdp2"),
    on_ranks("ddp-over-tp", _STYLE, "ddp_over_tp", ranks=4),
    on_ranks("ring-keys", _STYLE, "ring_keys"),
    on_ranks("zero-by-hand", _STYLE, "zero_by_hand"),
)

_UPDATE = (Blame.at(Stage.OPTIMIZER_STEP, Phase.UPDATE),)

WRONG = (
    Wrong(
        name="fsdp1/lr",
        program="fsdp1",
        title="a learning rate that was scaled with the ranks",
        edits=(Edit("lr=1e-3", "lr=1e-3 * world"),),
        expected=_UPDATE,
    ),
    Wrong(
        name="fsdp1-flat/clip",
        program="fsdp1-flat",
        title="gradients are clipped to a norm that was divided among the ranks",
        edits=(Edit("model.clip_grad_norm_(0.05)", "model.clip_grad_norm_(0.05 / world)"),),
        expected=(Blame.at(Stage.GRADIENT_CLIPPING, Phase.CLIP),),
    ),
    Wrong(
        name="fsdp2/lr",
        program="fsdp2",
        title="a learning rate that was scaled with the ranks",
        edits=(Edit("lr=1e-3", "lr=1e-3 * world"),),
        expected=_UPDATE,
    ),
    Wrong(
        name="ddp-over-tp/other-group",
        program="ddp-over-tp",
        title="gradients are averaged over the ranks that split a layer",
        edits=(Edit('process_group=mesh["dp"]', 'process_group=mesh["tp"]'),),
        expected=(Blame.of("0", "2", phase=Phase.PARAMETERS),),
    ),
    Wrong(
        name="ring-keys/places",
        program="ring-keys",
        title="the mask takes keys to be in order",
        edits=(Edit(".view(world, -1)[order].flatten()", ""),),
        expected=(Blame.of("attention", phase=Phase.FORWARD),),
    ),
    Wrong(
        name="zero-by-hand/sum",
        program="zero-by-hand",
        title="gradients are summed, not averaged",
        edits=(Edit("(grads / world)", "grads"),),
        expected=(Blame.at(Stage.GRADIENT_REDUCTION, Phase.MAIN_GRADIENT),),
    ),
)
