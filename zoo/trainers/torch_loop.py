"""Loops of torch's own: DDP, FSDP2, FSDP1 and ZeroRedundancyOptimizer."""

from __future__ import annotations

from ttrace.core.blame import Blame, Phase, Stage
from zoo.programs.program import Edit, Program, Run, Wrong
from zoo.trainers import EXAMPLES

_FOLDER = EXAMPLES / "torch_loop"
_BF16 = Edit(
    "            logits = model(part[:, :-1])\n",
    '            with torch.autocast("cpu", torch.bfloat16):\n'
    "                logits = model(part[:, :-1]).float()\n",
)


def _strategy(name: str, *words: str, edits: tuple[Edit, ...] = ()) -> Program:
    return Program(
        name=f"torch/{name}",
        style="torch",
        reference=Run("train", folder=_FOLDER, edits=edits),
        candidate=Run("train", ranks=2, words=words, folder=_FOLDER, edits=edits),
        steps=2,
    )


PROGRAMS: tuple[Program, ...] = (
    _strategy("ddp"),
    _strategy("ddp-accumulation-4", "--accumulate", "4"),
    _strategy("ddp-bf16", edits=(_BF16,)),
    _strategy("fsdp2", "--shard", "fsdp2"),
    _strategy("fsdp2-accumulation-4", "--shard", "fsdp2", "--accumulate", "4"),
    _strategy("fsdp1", "--shard", "fsdp1"),
    _strategy("fsdp1-accumulation-4", "--shard", "fsdp1", "--accumulate", "4"),
    _strategy("zero-redundancy", "--shard", "zero"),
)

WRONG: tuple[Wrong, ...] = (
    Wrong(
        name="torch/ddp-accumulation-4/not-divided",
        program="torch/ddp-accumulation-4",
        title="losses of microbatches are added, not averaged",
        edits=(Edit(" / len(mine)\n", "\n"),),
        expected=(Blame.at(Stage.GRADIENT_REDUCTION, Phase.MAIN_GRADIENT),),
    ),
    Wrong(
        name="torch/ddp/reduction-skipped",
        program="torch/ddp",
        title="gradients are never synchronised",
        edits=(
            Edit(
                "        for part in mine:\n",
                "        model.require_backward_grad_sync = False\n        for part in mine:\n",
            ),
        ),
        expected=(Blame.at(Stage.GRADIENT_REDUCTION, Phase.MAIN_GRADIENT),),
    ),
    Wrong(
        name="torch/fsdp2/learning-rate-of-one-rank",
        program="torch/fsdp2",
        title="rank 1 has another learning rate",
        edits=(
            Edit("(model.parameters(), lr=1e-3)", "(model.parameters(), lr=1e-3 * (1 + rank))"),
        ),
        expected=(Blame.at(Stage.OPTIMIZER_STEP, Phase.UPDATE),),
    ),
    Wrong(
        name="torch/zero-redundancy/stale-partition",
        program="torch/zero-redundancy",
        title="updated parameters are not sent to the other ranks",
        edits=(
            Edit(
                "tracer = ttrace",
                "if world > 1:\n    optimizer._sync_params = lambda: None\ntracer = ttrace",
            ),
        ),
        expected=(Blame.at(Stage.OPTIMIZER_STEP, Phase.UPDATE),),
    ),
    Wrong(
        name="torch/fsdp1/norm-of-one-shard",
        program="torch/fsdp1",
        title="every rank clips by the norm of its own shard",
        edits=(Edit('if world > 1 and options.shard == "fsdp1":', "if False:"),),
        expected=(Blame.at(Stage.GRADIENT_CLIPPING, Phase.GRADIENT_NORM),),
    ),
)
