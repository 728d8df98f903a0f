"""Programs whose step is more than one forward and one backward through one model."""

from __future__ import annotations

from ttrace.core.blame import Blame, Phase, Stage
from zoo.programs.program import Edit, Wrong, on_ranks

_STYLE = "several calls and losses"

PROGRAMS = (
    on_ranks("distillation", _STYLE, "distillation_ddp"),
    on_ranks("two-losses", _STYLE, "two_losses_ddp"),
    on_ranks("two-models", _STYLE, "two_models_ddp"),
)

WRONG = (
    Wrong(
        name="distillation/teacher-of-rank-0",
        program="distillation",
        title="the teacher sees the samples of rank 0 on every rank",
        edits=(Edit("model(weak[rows])", "model(weak[part * 8 // world :][: 8 // world])"),),
        expected=(Blame.at(Stage.MODEL_INPUT, Phase.INPUTS),),
    ),
    Wrong(
        name="distillation/temperature",
        program="distillation",
        title="rank 1 softens the teacher's answer more",
        edits=(Edit("model(weak[rows]) / 2", "model(weak[rows]) / (2 + rank)"),),
        expected=(Blame.at(Stage.LOSS, Phase.FORWARD),),
    ),
    Wrong(
        name="two-losses/second-by-world",
        program="two-losses",
        title="the second loss is divided by the number of ranks, and so are its gradients",
        edits=(Edit("0.5 * F.mse_loss", "0.5 / world * F.mse_loss"),),
        expected=(Blame.at(Stage.LOSS, Phase.FORWARD),),
    ),
    Wrong(
        name="two-losses/head-not-reduced",
        program="two-losses",
        title="the value head is left out of the reduction",
        edits=(
            Edit(
                "for parameter in model.parameters():",
                "for parameter in [*model.trunk.parameters(), *model.policy.parameters()]:",
            ),
        ),
        expected=(Blame.of("value", phase=Phase.GRADIENT_REDUCTION),),
    ),
    Wrong(
        name="two-models/regularisation-by-rank",
        program="two-models",
        title="rank 1 weighs the loss of the second use more",
        edits=(Edit("regularisation = 0.1 *", "regularisation = (0.1 + 0.05 * rank) *"),),
        expected=(Blame.at(Stage.LOSS, Phase.FORWARD),),
    ),
    Wrong(
        name="two-models/same-part",
        program="two-models",
        title="every rank encodes the first part of the batch",
        edits=(Edit("code = encoder(x[mine])", "code = encoder(x[: 8 // world])"),),
        expected=(Blame.at(Stage.MODEL_INPUT, Phase.INPUTS),),
    ),
)
