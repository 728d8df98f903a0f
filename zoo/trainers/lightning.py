"""Lightning's Trainer: its callback, with automatic and with manual optimization."""

from __future__ import annotations

from dataclasses import replace

from ttrace.core.blame import Blame, Phase, Stage
from zoo.programs.program import Edit, Program, Run, Wrong
from zoo.trainers import EXAMPLES


def _strategy(name: str, *edits: Edit, script: str = "train", steps: int = 2) -> Program:
    run = Run(script, folder=EXAMPLES / "lightning", edits=edits)
    return Program(
        name=f"lightning/{name}",
        style="lightning",
        reference=run,
        candidate=replace(run, ranks=2),
        steps=steps,
        needs=("lightning",),
    )


def _option(text: str) -> Edit:
    """One more argument of the Trainer."""
    return Edit("    max_epochs=1,\n", f"    max_epochs=1,\n    {text},\n")


def _method(text: str) -> Edit:
    """One more method of the module."""
    following = "    def configure_optimizers(self):\n"
    return Edit(following, f"{text}\n{following}")


_QUARTER = Edit("batch_size=8 // ranks", "batch_size=2 // ranks")
_BY_HAND = Edit(
    "        self.losses = []\n",
    "        self.losses = []\n        self.automatic_optimization = False\n",
)
_SHARDED = (
    _method(
        "    def configure_model(self):\n"
        "        if ranks > 1:\n"
        "            for part in (*self.layers, self):\n"
        "                fully_shard(part, mesh=self.device_mesh['data_parallel'])\n"
    ),
    Edit(
        '    strategy="ddp" if ranks > 1 else "auto",\n',
        "    strategy=ModelParallelStrategy(ranks, 1) if ranks > 1 else 'auto',\n",
    ),
    Edit(
        "import torch\n",
        "import torch\n"
        "from lightning.pytorch.strategies import ModelParallelStrategy\n"
        "from torch.distributed.fsdp import fully_shard\n",
    ),
)

PROGRAMS: tuple[Program, ...] = (
    _strategy("ddp"),
    _strategy("ddp-accumulation-4", _option("accumulate_grad_batches=4"), _QUARTER),
    _strategy("ddp-clipping", _option("gradient_clip_val=0.5")),
    _strategy("ddp-bf16", _option('precision="bf16-mixed"')),
    _strategy(
        "manual-optimization",
        _BY_HAND,
        Edit(
            "        return loss\n",
            "        optimizer = self.optimizers()\n"
            "        optimizer.zero_grad()\n"
            "        self.manual_backward(loss)\n"
            "        optimizer.step()\n",
        ),
    ),
    _strategy(
        "manual-accumulation-4",
        _BY_HAND,
        _QUARTER,
        Edit(
            "        return loss\n",
            "        optimizer = self.optimizers()\n"
            "        is_last = (batch_idx + 1) % 4 == 0\n"
            "        with optimizer.toggle_model(sync_grad=is_last):\n"
            "            self.manual_backward(loss / 4)\n"
            "        if is_last:\n"
            "            optimizer.step()\n"
            "            optimizer.zero_grad()\n",
        ),
    ),
    _strategy("gan", script="gan"),
    _strategy("fsdp2", *_SHARDED),
    _strategy("fsdp2-clipping", *_SHARDED, _option("gradient_clip_val=0.5")),
)

WRONG: tuple[Wrong, ...] = (
    Wrong(
        name="lightning/ddp/same-samples",
        program="lightning/ddp",
        title="no sampler, neither the script's nor Lightning's: all ranks take the same samples",
        edits=(Edit(", sampler=sampler)", ")"), _option("use_distributed_sampler=False")),
        expected=(Blame.at(Stage.MODEL_INPUT, Phase.INPUTS),),
    ),
    Wrong(
        name="lightning/ddp/learning-rate-of-a-rank",
        program="lightning/ddp",
        title="rank 1 has twice the learning rate",
        edits=(Edit("lr=1e-3", "lr=1e-3 * (1 + self.global_rank)"),),
        expected=(Blame.at(Stage.OPTIMIZER_STEP, Phase.UPDATE),),
    ),
    Wrong(
        name="lightning/ddp-accumulation-4/never-reduced",
        program="lightning/ddp-accumulation-4",
        title="the last microbatch blocks the reduction like those before it",
        edits=(
            _method(
                "    def optimizer_step(self, epoch, batch_idx, optimizer, closure):\n"
                "        with self.trainer.strategy.block_backward_sync():\n"
                "            optimizer.step(closure=closure)\n"
            ),
        ),
        expected=(Blame.at(Stage.GRADIENT_REDUCTION, Phase.MAIN_GRADIENT),),
    ),
    Wrong(
        name="lightning/ddp-clipping/norm-of-a-part",
        program="lightning/ddp-clipping",
        title="each rank clips by the norm of its part of the gradients",
        edits=(
            _method(
                "    def configure_gradient_clipping(self, optimizer, gradient_clip_val, **_):\n"
                "        parameters = list(self.parameters())\n"
                "        part = [p.grad for p in parameters[self.global_rank :: 2]]\n"
                "        norm = nn.utils.get_total_norm(part)\n"
                "        nn.utils.clip_grads_with_norm_(parameters, gradient_clip_val, norm)\n"
            ),
        ),
        expected=(Blame.at(Stage.GRADIENT_CLIPPING, Phase.GRADIENT_NORM),),
    ),
    Wrong(
        name="lightning/fsdp2/only-layers",
        program="lightning/fsdp2",
        title="what is outside of the sharded layers is reduced by nobody",
        edits=(Edit("for part in (*self.layers, self):", "for part in self.layers:"),),
        expected=(
            Blame.of("embedding", phase=Phase.GRADIENT_REDUCTION),
            Blame.of("norm", phase=Phase.GRADIENT_REDUCTION),
            Blame.of("head", phase=Phase.GRADIENT_REDUCTION),
        ),
    ),
    Wrong(
        name="lightning/manual-accumulation-4/not-divided",
        program="lightning/manual-accumulation-4",
        title="microbatches are added up, not averaged",
        edits=(Edit("self.manual_backward(loss / 4)", "self.manual_backward(loss)"),),
        expected=(Blame.at(Stage.GRADIENT_REDUCTION, Phase.MAIN_GRADIENT),),
    ),
)
