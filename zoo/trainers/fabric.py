"""Lightning Fabric: loops that a script writes itself, around what `fabric.setup` returns."""

from __future__ import annotations

from dataclasses import replace

from ttrace.core.blame import Blame, Phase, Stage
from zoo.programs.program import Edit, Program, Run, Wrong
from zoo.trainers import EXAMPLES


def _strategy(name: str, *edits: Edit, steps: int = 2) -> Program:
    run = Run("train", folder=EXAMPLES / "lightning_fabric", edits=edits)
    return Program(
        name=f"fabric/{name}",
        style="fabric",
        reference=run,
        candidate=replace(run, ranks=2),
        steps=steps,
        needs=("lightning",),
    )


_ACCUMULATED = (
    Edit("batch_size=8 // ranks", "batch_size=2 // ranks"),
    Edit("for (tokens,) in data:\n", "for index, (tokens,) in enumerate(data):\n"),
    Edit(
        "        logits = model(tokens[:, :-1])\n"
        "        loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())\n"
        "        fabric.backward(loss)\n"
        "        optimizer.step()\n"
        "        optimizer.zero_grad()\n",
        "        is_last = (index + 1) % 4 == 0\n"
        "        with fabric.no_backward_sync(model, enabled=not is_last):\n"
        "            logits = model(tokens[:, :-1])\n"
        "            loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())\n"
        "            fabric.backward(loss / 4)\n"
        "        if is_last:\n"
        "            optimizer.step()\n"
        "            optimizer.zero_grad()\n",
    ),
)
_CLIPPED = Edit(
    "        optimizer.step()\n",
    "        fabric.clip_gradients(model, optimizer, max_norm=0.5)\n        optimizer.step()\n",
)
_AFTER_SETUP = (
    "model = fabric.setup(model)\n"
    "optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)\n"
    "optimizer = fabric.setup_optimizers(optimizer)\n"
)
_SHARDED = (
    Edit(
        "import torch\n",
        "import torch\n"
        "from lightning.fabric.strategies import ModelParallelStrategy\n"
        "from torch.distributed.fsdp import fully_shard\n",
    ),
    Edit(
        'strategy = "ddp" if ranks > 1 else "auto"\n',
        "def parallelize(model, mesh):\n"
        "    for part in (*model.layers, model):\n"
        "        fully_shard(part, mesh=mesh['data_parallel'])\n"
        "    return model\n"
        "\n"
        "strategy = ModelParallelStrategy(parallelize, ranks, 1) if ranks > 1 else 'auto'\n",
    ),
    Edit("optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)\n", ""),
    Edit("model, optimizer = fabric.setup(model, optimizer)\n", _AFTER_SETUP),
)
_PADDED = Edit(
    "        loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())\n",
    "        labels = tokens[:, 1:].where(tokens[:, 1:] > 15, -100)\n"
    "        count = fabric.all_reduce((labels >= 0).sum().float(), reduce_op='mean')\n"
    "        loss = F.cross_entropy(logits.mT, labels, reduction='sum') / count\n",
)

PROGRAMS: tuple[Program, ...] = (
    _strategy("ddp"),
    _strategy("accumulation-4", *_ACCUMULATED),
    _strategy("clipping", _CLIPPED),
    _strategy("bf16", Edit("strategy=strategy)", "strategy=strategy, precision='bf16-mixed')")),
    _strategy("padded", _PADDED),
    _strategy("fsdp2", *_SHARDED),
    _strategy("fsdp2-clipping", *_SHARDED, _CLIPPED),
)

WRONG: tuple[Wrong, ...] = (
    Wrong(
        name="fabric/ddp/same-samples",
        program="fabric/ddp",
        title="Fabric was told to put no sampler in: all ranks take the same samples",
        edits=(Edit("// ranks))", "// ranks), use_distributed_sampler=False)"),),
        expected=(Blame.at(Stage.MODEL_INPUT, Phase.INPUTS),),
    ),
    Wrong(
        name="fabric/ddp/learning-rate-of-a-rank",
        program="fabric/ddp",
        title="rank 1 has twice the learning rate",
        edits=(Edit("lr=1e-3", "lr=1e-3 * (1 + fabric.global_rank)"),),
        expected=(Blame.at(Stage.OPTIMIZER_STEP, Phase.UPDATE),),
    ),
    Wrong(
        name="fabric/accumulation-4/never-reduced",
        program="fabric/accumulation-4",
        title="the last microbatch makes no reduction either",
        edits=(Edit("enabled=not is_last", "enabled=True"),),
        expected=(Blame.at(Stage.GRADIENT_REDUCTION, Phase.MAIN_GRADIENT),),
    ),
    Wrong(
        name="fabric/accumulation-4/not-divided",
        program="fabric/accumulation-4",
        title="microbatches are added up, not averaged",
        edits=(Edit("fabric.backward(loss / 4)", "fabric.backward(loss)"),),
        expected=(Blame.at(Stage.GRADIENT_REDUCTION, Phase.MAIN_GRADIENT),),
    ),
    Wrong(
        name="fabric/padded/local-tokens",
        program="fabric/padded",
        title="every rank divides its loss by its own count of tokens",
        edits=(
            Edit(
                "fabric.all_reduce((labels >= 0).sum().float(), reduce_op='mean')",
                "(labels >= 0).sum()",
            ),
        ),
        expected=(Blame.at(Stage.LOSS, Phase.FORWARD),),
    ),
    Wrong(
        name="fabric/fsdp2/stale-parameters",
        program="fabric/fsdp2",
        title="the optimizer was made before setup, and updates what the model has no more",
        edits=(
            Edit(
                _AFTER_SETUP,
                "optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)\n"
                "model, optimizer = fabric.setup(model, optimizer)\n",
            ),
        ),
        # Its zero_grad does not reach them either, so that gradients of all steps add up.
        expected=(
            Blame.at(Stage.OPTIMIZER_STEP, Phase.STATE),
            Blame.at(Stage.GRADIENT_ACCUMULATION, Phase.MAIN_GRADIENT),
        ),
    ),
    Wrong(
        name="fabric/fsdp2-clipping/norm-of-a-shard",
        program="fabric/fsdp2-clipping",
        title="every rank clips by the norm of what it holds",
        edits=(
            Edit(
                "        fabric.clip_gradients(model, optimizer, max_norm=0.5)\n",
                "        norm = nn.utils.get_total_norm(\n"
                "            [parameter.grad.to_local() for parameter in model.parameters()]\n"
                "        )\n"
                "        nn.utils.clip_grads_with_norm_(model.parameters(), 0.5, norm)\n",
            ),
        ),
        expected=(Blame.at(Stage.GRADIENT_CLIPPING, Phase.GRADIENT_NORM),),
    ),
)
