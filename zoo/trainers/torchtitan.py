"""torchtitan: its Trainer and its llama3, parallelised by its own functions."""

from __future__ import annotations

from dataclasses import replace

from ttrace.core.blame import Blame, Phase, Stage
from zoo.programs.program import Edit, Program, Run, Wrong
from zoo.trainers import EXAMPLES
from zoo.trainers.titan_cpu import NEEDS

_RUN = Run("train", folder=EXAMPLES / "torchtitan")
_IN_CONFIG = "        comm=CommConfig(trace_buf_size=0),\n"
_BEFORE = "parser = argparse.ArgumentParser()\n"
_PARALLELISM = "tensor_parallel_degree=options.tp, "


def _strategy(
    name: str,
    *edits: Edit,
    words: tuple[str, ...] = (),
    split: tuple[str, ...] = (),
    split_edits: tuple[Edit, ...] = (),
    ranks: int = 2,
) -> Program:
    """`words` and `edits` are those of both runs, `split...` of the candidate alone."""
    reference = replace(_RUN, words=words, edits=edits)
    return Program(
        name=f"torchtitan/{name}",
        style="torchtitan",
        reference=reference,
        candidate=replace(reference, ranks=ranks, words=(*words, *split)).edited(split_edits),
        steps=2,
        needs=NEEDS,
    )


PROGRAMS = (
    _strategy("fsdp2"),
    _strategy("tp", split=("--tp", "2")),
    _strategy("fsdp2-tp", split=("--tp", "2"), ranks=4),
    _strategy("accumulation-4", words=("--accumulate", "4")),
    _strategy(
        "fsdp2-bf16", Edit('mixed_precision_param="float32"', 'mixed_precision_param="bfloat16"')
    ),
    _strategy(
        "full-ac",
        Edit(
            _BEFORE, "from torchtitan.distributed.activation_checkpoint import FullAC\n" + _BEFORE
        ),
        Edit(_IN_CONFIG, "        activation_checkpoint=FullAC.Config(),\n" + _IN_CONFIG),
    ),
    _strategy(
        "chunked-loss",
        Edit("import IGNORE_INDEX, CrossEntropyLoss", "import *"),
        Edit("loss=CrossEntropyLoss", "loss=ChunkedLossWrapper.Config(loss_fn=CrossEntropyLoss"),
        Edit("spec.model.vocab_size)", "spec.model.vocab_size))"),
    ),
    _strategy(
        "hsdp",
        split_edits=(Edit(_PARALLELISM, _PARALLELISM + "data_parallel_replicate_degree=2, "),),
    ),
)


def _patched(code: str) -> Edit:
    """The same as if it stood so in torchtitan."""
    return Edit(_BEFORE, f"from torchtitan.distributed import utils as dist_utils\n{code}{_BEFORE}")


_MEAN_OF_MEANS = """
dist_utils.dist_sum_tensor = lambda tokens, mesh: tokens * mesh.size()
"""
_TOKENS_OF_A_MICROBATCH = """
dist_sum_tensor = dist_utils.dist_sum_tensor
dist_utils.dist_sum_tensor = lambda tokens, mesh: dist_sum_tensor(tokens, mesh) / 4
"""
_NORM_OF_A_PART = """
def clip_grad_norm_(parameters, max_norm, **_):
    norm = torch.nn.utils.get_total_norm([p.grad.to_local() for p in parameters])
    torch.nn.utils.clip_grads_with_norm_(parameters, max_norm, norm)
    return norm
dist_utils.clip_grad_norm_ = clip_grad_norm_
"""
_OVERWRITTEN = """
def forward_backward_step(trainer, *, step=Trainer.forward_backward_step, **arguments):
    trainer.optimizers.zero_grad()
    return step(trainer, **arguments)
Trainer.forward_backward_step = forward_backward_step
"""
_NO_GRAD_PLACEMENTS = """
from torch.distributed.tensor import DTensor, Shard
def forward(linear, x):
    weight = linear.weight
    out = torch.nn.functional.linear(x.to_local(), weight.to_local())
    return DTensor.from_local(out, weight.device_mesh, [Shard(2)])
"""
_USED = """
linear = trainer.model_parts[0].layers["1"].feed_forward.w1
linear.forward = forward.__get__(linear)
"""

WRONG = (
    Wrong(
        name="torchtitan/fsdp2/mean-of-means",
        program="torchtitan/fsdp2",
        title="TT#1842: each rank divides by its own tokens, then ranks are averaged",
        edits=(_patched(_MEAN_OF_MEANS),),
        expected=(Blame.at(Stage.LOSS, Phase.FORWARD),),
    ),
    Wrong(
        name="torchtitan/fsdp2/norm-of-a-part",
        program="torchtitan/fsdp2",
        title="TT#596: each rank clips by the norm of what it holds",
        edits=(_patched(_NORM_OF_A_PART),),
        expected=(Blame.at(Stage.GRADIENT_CLIPPING, Phase.GRADIENT_NORM),),
    ),
    Wrong(
        name="torchtitan/fsdp2/learning-rate",
        program="torchtitan/fsdp2",
        title="rank 1 has another learning rate",
        edits=(Edit("lr=1e-3", 'lr=1e-3 * (1 + int(os.environ["RANK"]))'),),
        expected=(Blame.at(Stage.OPTIMIZER_STEP, Phase.UPDATE),),
    ),
    Wrong(
        name="torchtitan/tp/no-grad-placements",
        program="torchtitan/tp",
        title="TT#1805: a linear layer's local input gets a local gradient, which nobody adds up",
        edits=(
            _patched(_NO_GRAD_PLACEMENTS),
            Edit("model, losses =", _USED + "model, losses ="),
        ),
        expected=(Blame.of("layers.1.feed_forward.w1", phase=Phase.BACKWARD),),
    ),
    Wrong(
        name="torchtitan/accumulation-4/overwritten",
        program="torchtitan/accumulation-4",
        title="TT#3575: gradients of earlier microbatches are lost",
        edits=(_patched(_OVERWRITTEN),),
        expected=(Blame.at(Stage.GRADIENT_ACCUMULATION, Phase.MAIN_GRADIENT),),
    ),
    Wrong(
        name="torchtitan/accumulation-4/not-divided",
        program="torchtitan/accumulation-4",
        title="each microbatch's loss is divided by the tokens of one, not of all four",
        edits=(_patched(_TOKENS_OF_A_MICROBATCH),),
        expected=(Blame.at(Stage.GRADIENT_REDUCTION, Phase.MAIN_GRADIENT),),
    ),
)
