"""Data parallel programs: the batch is divided, the model is whole."""

from __future__ import annotations

from ttrace.core.blame import Blame, Phase, Stage
from zoo.programs.program import Edit, Program, Run, Wrong

PROGRAMS = (
    Program(
        name="mlp-ddp",
        style="data parallel",
        reference=Run("mlp_ddp"),
        candidate=Run("mlp_ddp", ranks=2),
        steps=2,
    ),
)

WRONG = (
    Wrong(
        name="mlp-ddp/same-part",
        program="mlp-ddp",
        title="every rank takes the first part of the batch",
        edits=(Edit("slice(rank * 8 // world, (rank + 1) * 8 // world)", "slice(0, 8 // world)"),),
        expected=(Blame.at(Stage.MODEL_INPUT, Phase.INPUTS),),
    ),
    Wrong(
        name="mlp-ddp/loss-of-a-part",
        program="mlp-ddp",
        title="rank 1 divides its loss by the size of the whole batch",
        edits=(Edit("        loss.backward()", "        (loss / (1 + rank)).backward()"),),
        expected=(Blame.at(Stage.LOSS, Phase.FORWARD),),
    ),
    Wrong(
        name="mlp-ddp/forward-and-backward",
        program="mlp-ddp",
        title="one activation is a little too large and passes twice its gradient back",
        edits=(
            Edit(
                "torch.manual_seed(1)\n",
                "class Loud(nn.GELU):\n"
                "    def forward(self, x):\n"
                "        y = super().forward(x)\n"
                "        return 1.0005 * y + (y - y.detach())\n"
                "torch.manual_seed(1)\n",
            ),
            Edit("nn.GELU(),", "Loud(),"),
        ),
        expected=(Blame.of("1", phase=Phase.FORWARD), Blame.of("1", phase=Phase.BACKWARD)),
    ),
)
