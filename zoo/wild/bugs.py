"""The bugs in the wild, by package."""

from __future__ import annotations

from ttrace.core.blame import Blame, Phase, Stage
from zoo.programs.program import Edit
from zoo.wild.bug import WildBug

_PYTORCH = "https://github.com/pytorch/pytorch/issues"
_LOSS_FORWARD = (Blame.at(Stage.LOSS, Phase.FORWARD),)
_LOSS_BACKWARD = (Blame.at(Stage.LOSS, Phase.BACKWARD),)

_TORCH = (
    WildBug(
        name="dtensor_mean_loss",
        package="torch",
        version="2.13.0",
        title="mse, smooth_l1, huber, binary_cross_entropy and soft_margin with a mean, on a "
        "sharded DTensor: the gradient is as many times too large as there are ranks",
        expected=_LOSS_BACKWARD,
        repair=(
            Edit(
                "F.mse_loss(output, target)",
                'F.mse_loss(output, target, reduction="none").mean()',
            ),
        ),
    ),
    WildBug(
        name="uneven_mean_loss",
        package="torch",
        version="2.13.0",
        title="binary_cross_entropy_with_logits and the losses above, with a mean, on a DTensor "
        "whose shards are of unequal size: a mean of the ranks' means",
        expected=_LOSS_FORWARD,
        repair=(
            Edit(
                "F.binary_cross_entropy_with_logits(output, target)",
                'F.binary_cross_entropy_with_logits(output, target, reduction="sum") / y.numel()',
            ),
        ),
    ),
    WildBug(
        name="cosine_embedding",
        package="torch",
        version="2.13.0",
        title="fill_ of a DTensor that is still to be summed fills it on every rank, so that "
        "cosine_embedding_loss of sharded features has 2 - cos instead of 1 - cos on two ranks",
        expected=_LOSS_FORWARD,
        repair=(
            Edit(
                "F.cosine_embedding_loss(first, second, same)",
                "F.cosine_embedding_loss(first.full_tensor(), second.full_tensor(), "
                "same.full_tensor())",
            ),
        ),
    ),
    WildBug(
        name="infinity_norm",
        package="torch",
        version="2.13.0",
        title="the infinity norm of a sharded DTensor has a gradient of nan: each rank divides by "
        "how often the norm stands in its own part",
        expected=_LOSS_BACKWARD,
        repair=(Edit('.norm(float("inf"))', ".abs().max()"),),
    ),
    WildBug(
        name="loss_parallel_distillation",
        package="torch",
        version="2.13.0",
        link=f"{_PYTORCH}/190746",
        title="inside loss_parallel, log_softmax that no nll_loss follows has the gradient of the "
        "identity: also in cross_entropy with probabilities as targets",
        expected=_LOSS_BACKWARD,
        repair=(Edit("tracer.step(), loss_parallel():", "tracer.step():"),),
        shows_alone=True,
    ),
    WildBug(
        name="sharded_batch_cross_entropy",
        package="torch",
        version="2.13.0",
        link=f"{_PYTORCH}/185167",
        title="the mean cross-entropy of a sharded batch is a mean of the ranks' means: wrong with "
        "class weights, as the issue says, and with labels that are ignored",
        expected=_LOSS_FORWARD,
        repair=(
            Edit(
                "F.cross_entropy(logits, labels)",
                'F.cross_entropy(logits, labels, reduction="sum") / 24',
            ),
        ),
    ),
    WildBug(
        name="pipeline_batch_norm",
        package="torch",
        version="2.13.0",
        link=f"{_PYTORCH}/188763",
        title="a pipeline that finds out its shapes runs BatchNorm once more: its buffers move",
        expected=tuple(Blame.of(f"layers.{n}.norm", phase=Phase.BUFFER) for n in range(4)),
        repair=(
            Edit(
                'torch.device("cpu"))',
                'torch.device("cpu"), x[:8].clone().requires_grad_(rank > 0), '
                "y[:8].clone().requires_grad_())",
            ),
        ),
    ),
    WildBug(
        name="hybrid_shard",
        package="torch",
        version="2.13.0",
        link=f"{_PYTORCH}/154888",
        title="FSDP1 with HYBRID_SHARD on a mesh without shards divides gradients by the ranks, "
        "and never sums them",
        expected=(Blame.at(Stage.GRADIENT_REDUCTION, Phase.MAIN_GRADIENT),),
        repair=(
            Edit("ShardingStrategy.HYBRID_SHARD", "ShardingStrategy.NO_SHARD"),
            Edit("    device_mesh=mesh,\n", ""),
        ),
    ),
    WildBug(
        name="gathered_keys",
        package="torch",
        version="2.13.0",
        link=f"{_PYTORCH}/192920",
        title="torch.distributed.nn.functional.all_gather on gloo: a gradient that is not "
        "contiguous arrives scrambled (the scatter that the issue is about)",
        expected=(Blame.of("attn", phase=Phase.BACKWARD),),
        repair=(
            Edit(
                "    return torch.cat(all_gather(x), dim=1)",
                "    parts = all_gather(x)\n"
                "    for part in parts:\n"
                "        part.register_hook(torch.Tensor.contiguous)\n"
                "    return torch.cat(parts, dim=1)",
            ),
        ),
        shows_alone=True,
    ),
)

_OTHERS = (
    WildBug(
        name="accelerate_accumulation",
        package="accelerate",
        version="1.15.0",
        title="the loss of a last, shorter accumulation window is divided by the full window",
        expected=_LOSS_FORWARD,
        repair=(Edit("accelerator.backward(loss)", "accelerator.backward(loss * 2 / size)"),),
        steps=3,
        baseline="plain_accumulation",
    ),
    WildBug(
        name="adamw_8bit",
        package="torchao",
        version="0.18.0",
        link="https://github.com/pytorch/ao/issues/4912",
        title="AdamW8bit keeps its state in 8 bits or in fp32 by the size of a shard, not by that "
        "of the parameter",
        expected=(Blame.at(Stage.OPTIMIZER_STEP, Phase.STATE),),
        repair=(Edit("OUT = 6", "OUT = 16"),),
        changes_reference=True,
    ),
    WildBug(
        name="smoothed_labels",
        package="megatron-core",
        version="0.16.1",
        link="https://github.com/NVIDIA/Megatron-LM/issues/737",
        title="label smoothing in vocabulary-parallel cross-entropy takes each rank's part for the "
        "whole vocabulary",
        expected=_LOSS_FORWARD,
        repair=(
            Edit("model(tokens).to_local()", "model(tokens).full_tensor()"),
            Edit("tensor_model_parallel_size=world", "tensor_model_parallel_size=1"),
        ),
    ),
)

WILD = {bug.name: bug for bug in (*_TORCH, *_OTHERS)}
