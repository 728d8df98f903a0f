"""More real bugs, in the stages after backward: reduction, accumulation, clipping, optimizer."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel
from megatron.core.optimizer import optimizer as megatron_optimizer
from megatron.core.pipeline_parallel import schedules

from ttrace.core.blame import Blame, Phase, Stage
from zoo.bug import each
from zoo.megatron.paper import unmark
from zoo.megatron.plant import bug, once_built, replace, wrap

_LAYERS = tuple(f"decoder.layers.{number}" for number in range(4))
_NORMS = tuple(
    f"{layer}.{norm}" for layer in _LAYERS for norm in ("input_layernorm", "pre_mlp_layernorm")
)

_EXPERTS = tuple(
    f"{layer}.mlp.experts.local_experts.{expert}.{linear}"
    for layer in _LAYERS
    for expert in range(4)
    for linear in ("linear_fc1", "linear_fc2")
)


@bug(
    "torchtitan#1551, Megatron-LM 4f8974a400",
    2,
    *each(_EXPERTS, Phase.GRADIENT_REDUCTION),
    ep=2,
    experts=4,
)
def expert_gradient_scale(stack: ExitStack) -> None:
    """Gradients of experts are divided by the wrong number of ranks."""

    def change(ddp: Any, _: Any) -> None:
        for group in ddp.expert_parallel_bucket_groups:
            for bucket in group.buckets:
                bucket.gradient_scaling_factor *= ddp.ep_group.size()

    once_built(stack, change)


@bug("Megatron-LM 20b7a5489d", 2, *each(_NORMS, Phase.GRADIENT_REDUCTION), tp=2, sp=True)
def norms_unmarked(stack: ExitStack) -> None:
    """No norm of a layer says that its gradient is to be summed over tensor parallel."""
    unmark(stack, "input_layernorm", "pre_mlp_layernorm")


@bug("VeOmni#1059, verl#7493", 2, Blame.at(Stage.GRADIENT_REDUCTION, Phase.MAIN_GRADIENT), cp=2)
def reduced_without_context(stack: ExitStack) -> None:
    """Gradients are reduced over data-parallel ranks without those that split the sequence."""

    def change(ddp: Any, _: Any) -> None:
        for group in ddp.bucket_groups:
            group.data_parallel_group = parallel_state.get_data_parallel_group()
            group.intra_distributed_optimizer_instance_group = group.data_parallel_group

    once_built(stack, change)


@bug("pytorch#104336", 2, Blame.at(Stage.GRADIENT_REDUCTION, Phase.MAIN_GRADIENT))
def no_reduction(stack: ExitStack) -> None:
    """Gradients stay those of each data-parallel rank."""
    replace(stack, DistributedDataParallel, "finish_grad_sync", lambda *_, **__: None)


# Counted twice before ranks are added: the reduction is right.
@bug("torchtitan#3174", 2, Blame.of("embedding.word_embeddings", phase=Phase.GRADIENT_ACCUMULATION))
def tied_gradient_twice(stack: ExitStack) -> None:
    """The gradient of a tied parameter is counted once for every name it has."""

    def finish(original: Any, self: Any, *args: Any, **kwargs: Any) -> None:
        self.module.embedding.word_embeddings.weight.main_grad.mul_(2)
        original(self, *args, **kwargs)

    wrap(stack, DistributedDataParallel, "finish_grad_sync", finish)


# Every gradient of a microbatch is right, and so is the sum over ranks.
@bug(
    "Megatron-LM#6624, TransformerEngine#1618",
    2,
    Blame.at(Stage.GRADIENT_ACCUMULATION, Phase.MAIN_GRADIENT),
)
def low_precision_accumulation(stack: ExitStack) -> None:
    """Gradients are rounded to bf16 before they are accumulated in fp32."""

    def hook(original: Any, self: Any, parameter: Any) -> Any:
        inner = original(self, parameter)

        def rounded(*args: Any) -> None:
            if parameter.grad is not None:
                parameter.grad = parameter.grad.bfloat16().float()
            inner(*args)

        return rounded

    wrap(stack, DistributedDataParallel, "_make_backward_post_hook", hook)


@bug("DeepSpeed#7981, Fast-LLM#550", 1, Blame.at(Stage.GRADIENT_ACCUMULATION, Phase.MAIN_GRADIENT))
def last_microbatch_only(stack: ExitStack) -> None:
    """Each microbatch overwrites the gradients of those before it."""

    def hook(original: Any, self: Any, parameter: Any) -> Any:
        inner = original(self, parameter)

        def overwriting(*args: Any) -> None:
            parameter.main_grad.zero_()
            inner(*args)

        return overwriting

    wrap(stack, DistributedDataParallel, "_make_backward_post_hook", hook)


@bug("DeepSpeed#5411", 2, Blame.at(Stage.GRADIENT_CLIPPING, Phase.GRADIENT_NORM), tp=2)
def norm_counts_one_rank(stack: ExitStack) -> None:
    """No parameter says that it is split: the norm counts those of the first rank only."""

    def change(_: Any, modules: dict[str, Any]) -> None:
        for module in modules.values():
            for parameter in module.parameters(recurse=False):
                parameter.tensor_model_parallel = False

    once_built(stack, change)


@bug("ROCm TransformerEngine#715", 2, Blame.at(Stage.GRADIENT_CLIPPING, Phase.GRADIENT_NORM), tp=2)
def norm_counts_replicas(stack: ExitStack) -> None:
    """Parameters that every rank holds whole say that they are split: they count twice."""

    def change(_: Any, modules: dict[str, Any]) -> None:
        for module in modules.values():
            for parameter in module.parameters(recurse=False):
                parameter.tensor_model_parallel = True

    once_built(stack, change)


def _norm_without(stack: ExitStack) -> None:
    """The norm of this rank's gradients alone."""

    def norm(original: Any, grads: Any, *args: Any, **kwargs: Any) -> Any:
        kwargs["grad_stats_parallel_group"] = _alone()
        return original(grads, *args, **kwargs)

    wrap(stack, megatron_optimizer, "get_grad_norm_fp32", norm)


def _alone() -> Any:
    """A group of this rank only: the context-parallel one, where there is no such parallelism."""
    return parallel_state.get_context_parallel_group()


@bug("torchtitan#596, #649", 2, Blame.at(Stage.GRADIENT_CLIPPING, Phase.GRADIENT_NORM), pp=2)
def norm_of_one_stage(stack: ExitStack) -> None:
    """Each pipeline stage clips by the norm of its own gradients."""
    _norm_without(stack)


@bug(
    "RLinf#1558, pytorch#170862",
    2,
    Blame.at(Stage.GRADIENT_CLIPPING, Phase.GRADIENT_NORM),
    zero1=True,
)
def norm_of_one_shard(stack: ExitStack) -> None:
    """Each rank clips by the norm of its own shard of the gradients."""
    _norm_without(stack)


@bug("DeepSpeed#1801", 2, Blame.at(Stage.GRADIENT_CLIPPING, Phase.GRADIENT_NORM), tp=2)
def norm_of_one_tensor_rank(stack: ExitStack) -> None:
    """Each rank clips by a norm of its own: replicated parameters drift apart."""
    _norm_without(stack)


@bug(
    "DeepSpeed#1264",
    4,
    Blame.at(Stage.GRADIENT_ACCUMULATION, Phase.MAIN_GRADIENT),
    pp=2,
    zero1=True,
)
def reduced_too_early(stack: ExitStack) -> None:
    """Gradients are reduced after the first microbatch; later ones are added on each rank alone.

    What the reduction is given is not yet the sum over microbatches.
    """
    chunks: list[Any] = []
    reduced: set[int] = set()

    def backward(original: Any, *args: Any, **kwargs: Any) -> Any:
        found = original(*args, **kwargs)
        for chunk in chunks:
            chunk.finish_grad_sync()
        return found

    def finish(original: Any, self: Any, *args: Any, **kwargs: Any) -> None:
        if id(self) not in reduced:
            reduced.add(id(self))
            original(self, *args, **kwargs)

    once_built(stack, lambda ddp, _: chunks.append(ddp))
    wrap(stack, DistributedDataParallel, "finish_grad_sync", finish)
    wrap(stack, schedules, "backward_step", backward)


@bug("Megatron-LM#6336", 2, Blame.at(Stage.OPTIMIZER_STEP, Phase.UPDATE), bf16=True)
def model_not_updated(stack: ExitStack) -> None:
    """The optimizer's fp32 copies are updated, the bf16 parameters of the model are not."""
    owner = megatron_optimizer.Float16OptimizerWithFloat16Params
    replace(stack, owner, "_copy_main_params_to_model_params", lambda _: None)
