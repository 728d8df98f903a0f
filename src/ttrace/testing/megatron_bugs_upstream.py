"""More bugs that were real in Megatron-LM, torchtitan, DeepSpeed and others, in megatron-core."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel
from megatron.core.models.common.embeddings import rotary_pos_embedding
from megatron.core.models.gpt import gpt_layer_specs
from megatron.core.optimizer import optimizer as megatron_optimizer
from megatron.core.tensor_parallel import mappings
from megatron.core.tensor_parallel.layers import RowParallelLinear
from megatron.core.transformer import transformer_layer
from megatron.core.transformer.moe.moe_utils import MoEAuxLossAutoScaler
from megatron.core.transformer.moe.router import TopKRouter
from megatron.core.transformer.moe.token_dispatcher import MoEAlltoAllTokenDispatcher

from ttrace.testing import megatron_modules
from ttrace.testing.megatron_bugs import bug, once_built, replace, wrap
from ttrace.testing.megatron_bugs_paper import unmark

_LAYERS = tuple(f"decoder.layers.{number}" for number in range(4))
_ROUTERS = tuple(f"{layer}.mlp.router" for layer in _LAYERS)
_NORMS = tuple(
    f"{layer}.{norm}" for layer in _LAYERS for norm in ("input_layernorm", "pre_mlp_layernorm")
)
_ROW = "decoder.layers.1.mlp.linear_fc2"
_REDUCTION = "gradient reduction"


@bug("Megatron-LM#2237", 2, _ROUTERS, "backward or weight gradient", cp=2, experts=4)
def auxiliary_loss_context(stack: ExitStack) -> None:
    """The auxiliary loss is not multiplied by the context-parallel size, as the main loss is."""

    def scaled(original: Any, scale: torch.Tensor) -> None:
        original(scale / parallel_state.get_context_parallel_world_size())

    inner = MoEAuxLossAutoScaler.set_loss_scale
    replace(stack, MoEAuxLossAutoScaler, "set_loss_scale", staticmethod(lambda s: scaled(inner, s)))


@bug("Megatron-LM cac8d1a3f0", 2, _ROUTERS, "backward or weight gradient", tp=2, sp=True, experts=4)
def auxiliary_loss_tensor(stack: ExitStack) -> None:
    """The auxiliary loss counts once for every tensor-parallel rank."""

    def coefficient(original: Any, self: Any, kind: str) -> Any:
        return original(self, kind) * parallel_state.get_tensor_model_parallel_world_size()

    wrap(stack, TopKRouter, "get_aux_loss_coeff", coefficient)


_EXPERTS = tuple(
    f"{layer}.mlp.experts.local_experts.{expert}.{linear}"
    for layer in _LAYERS
    for expert in range(4)
    for linear in ("linear_fc1", "linear_fc2")
)


@bug("torchtitan#1551, Megatron-LM 4f8974a400", 2, _EXPERTS, _REDUCTION, ep=2, experts=4)
def expert_gradient_scale(stack: ExitStack) -> None:
    """Gradients of experts are divided by the wrong number of ranks."""

    def change(ddp: Any, _: Any) -> None:
        for group in ddp.expert_parallel_bucket_groups:
            for bucket in group.buckets:
                bucket.gradient_scaling_factor *= ddp.ep_group.size()

    once_built(stack, change)


@bug("Megatron-LM 20b7a5489d", 2, _NORMS, _REDUCTION, tp=2, sp=True)
def norms_unmarked(stack: ExitStack) -> None:
    """No norm of a layer says that its gradient is to be summed over tensor parallel."""
    unmark(stack, "input_layernorm", "pre_mlp_layernorm")


@bug("VeOmni#1059, verl#7493", 2, "gradient reduction", "main gradient", cp=2)
def reduced_without_context(stack: ExitStack) -> None:
    """Gradients are reduced over data-parallel ranks without those that split the sequence."""

    def change(ddp: Any, _: Any) -> None:
        for group in ddp.bucket_groups:
            group.data_parallel_group = parallel_state.get_data_parallel_group()
            group.intra_distributed_optimizer_instance_group = group.data_parallel_group

    once_built(stack, change)


@bug("pytorch#104336", 2, "gradient reduction", "main gradient")
def no_reduction(stack: ExitStack) -> None:
    """Gradients stay those of each data-parallel rank."""
    replace(stack, DistributedDataParallel, "finish_grad_sync", lambda *_, **__: None)


@bug("DeepSpeed#5411", 2, "gradient clipping", "grad norm", tp=2)
def norm_counts_one_rank(stack: ExitStack) -> None:
    """No parameter says that it is split: the norm counts those of the first rank only."""

    def change(_: Any, modules: dict[str, Any]) -> None:
        for module in modules.values():
            for parameter in module.parameters(recurse=False):
                parameter.tensor_model_parallel = False

    once_built(stack, change)


@bug("ROCm TransformerEngine#715", 2, "gradient clipping", "grad norm", tp=2)
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


@bug("torchtitan#596, #649", 2, "gradient clipping", "grad norm", pp=2)
def norm_of_one_stage(stack: ExitStack) -> None:
    _norm_without(stack)


@bug("RLinf#1558, pytorch#170862", 2, "gradient clipping", "grad norm", zero1=True)
def norm_of_one_shard(stack: ExitStack) -> None:
    _norm_without(stack)


@bug("DeepSpeed#1801", 2, "gradient clipping", "grad norm", tp=2)
def norm_of_one_tensor_rank(stack: ExitStack) -> None:
    """Each rank clips by a norm of its own: replicated parameters drift apart."""
    _norm_without(stack)


@bug("torchtitan#4245", 2, _ROW, "forward", tp=2)
def bias_before_reduction(stack: ExitStack) -> None:
    """A replicated bias is added before the sum over ranks."""

    def forward(original: Any, self: Any, input_: torch.Tensor) -> Any:
        output, bias = original(self, input_)
        if getattr(self, "adds_early", False):
            output = output + self.bias * (self.tp_group.size() - 1)
        return output, bias

    once_built(stack, lambda _, modules: setattr(modules[_ROW], "adds_early", True))
    wrap(stack, RowParallelLinear, "forward", forward)


@bug(
    "torchtitan#2106",
    2,
    tuple(
        f"{layer}.{linear}"
        for layer in reversed(_LAYERS)
        for linear in ("mlp.linear_fc2", "self_attention.linear_proj")
    ),
    "backward",
    tp=2,
)
def gradient_reduced_again(stack: ExitStack) -> None:
    """The gradient of a sum over ranks is summed over them as well."""

    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        total = grad.clone()
        dist.all_reduce(total, group=parallel_state.get_tensor_model_parallel_group())
        return total, None

    region = mappings._ReduceFromModelParallelRegion  # noqa: SLF001
    replace(stack, region, "backward", staticmethod(backward))


@bug("torchtitan#3174", 2, "embedding.word_embeddings", _REDUCTION)
def tied_gradient_twice(stack: ExitStack) -> None:
    """The gradient of a tied parameter is counted once for every name it has."""

    def finish(original: Any, self: Any, *args: Any, **kwargs: Any) -> None:
        self.module.embedding.word_embeddings.weight.main_grad.mul_(2)
        original(self, *args, **kwargs)

    wrap(stack, DistributedDataParallel, "finish_grad_sync", finish)


@bug(
    "TransformerEngine#530",
    2,
    tuple(
        f"{layer}.{linear}"
        for layer in reversed(_LAYERS)
        for linear in ("mlp.linear_fc1", "self_attention.linear_qkv")
    ),
    "weight gradient",
    tp=2,
    sp=True,
)
def gathered_in_wrong_order(stack: ExitStack) -> None:
    """In backward the parts of the sequence are gathered in another order than the gradient's."""
    from megatron.core.tensor_parallel import layers

    def gather(original: Any, output: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        handle = original(output, *args, **kwargs)
        if torch._C._current_graph_task_id() >= 0:  # noqa: SLF001
            handle.wait() if handle is not None else None
            output.copy_(torch.cat(tuple(reversed(output.chunk(2)))))
        return handle

    wrap(stack, layers, "dist_all_gather_func", gather)


@bug(
    "torchtitan#3206, #3681",
    2,
    tuple(f"{layer}.self_attention.core_attention" for layer in _LAYERS),
    "forward",
    cp=2,
)
def keys_in_rank_order(stack: ExitStack) -> None:
    """Gathered keys and values stand rank after rank, not in the order of the sequence."""

    def forward(ctx: Any, local: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        parts = [torch.empty_like(local) for _ in range(group.size())]
        dist.all_gather(parts, local.contiguous(), group=group)
        return torch.cat(parts)

    replace(stack, megatron_modules._GatherSequence, "forward", staticmethod(forward))  # noqa: SLF001


@bug("Megatron-LM 54d4b3ddbb", 2, tuple(f"{x}.mlp" for x in _LAYERS), "forward", ep=2, experts=4)
def expert_rows_mixed(stack: ExitStack) -> None:
    """Tokens from several ranks are sorted by counts of the wrong experts."""

    def preprocess(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        counts = self.num_global_tokens_per_local_expert
        self.num_global_tokens_per_local_expert = counts.flip(-1).contiguous()
        return result

    wrap(stack, MoEAlltoAllTokenDispatcher, "preprocess", preprocess)


@bug("torchtitan#792", 2, "rotary_pos_emb", "forward", cp=2)
def positions_of_first_rank(stack: ExitStack) -> None:
    """Every rank rotates by the first positions, whatever part of the sequence it holds."""

    def first(pos_emb: torch.Tensor, seq_dim: int, cp_group: Any) -> torch.Tensor:
        return pos_emb.narrow(seq_dim, 0, pos_emb.shape[seq_dim] // cp_group.size())

    replace(stack, rotary_pos_embedding, "get_pos_emb_on_this_cp_rank", first)


@bug("Megatron-LM b759cd37e6", 2, "decoder.layers.2", "missing", pp=2)
def layer_offset(stack: ExitStack) -> None:
    """The second stage believes to begin one layer later, and loads the weights of others."""

    def offset(original: Any, *args: Any, **kwargs: Any) -> int:
        found = int(original(*args, **kwargs))
        return found + 1 if found else 0

    wrap(stack, transformer_layer, "get_transformer_layer_offset", offset)
    wrap(stack, gpt_layer_specs, "get_transformer_layer_offset", offset)


@bug("Megatron-LM#6624, TransformerEngine#1618", 2, "gradient reduction", "main gradient")
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


@bug("DeepSpeed#7981, Fast-LLM#550", 1, "gradient accumulation", "main gradient")
def last_microbatch_only(stack: ExitStack) -> None:
    """Each microbatch overwrites the gradients of those before it."""

    def hook(original: Any, self: Any, parameter: Any) -> Any:
        inner = original(self, parameter)

        def overwriting(*args: Any) -> None:
            parameter.main_grad.zero_()
            inner(*args)

        return overwriting

    wrap(stack, DistributedDataParallel, "_make_backward_post_hook", hook)


@bug("Megatron-LM 5946e24b37", 2, "gradient reduction", "main gradient", cp=2, per_token=True)
def token_loss_context(stack: ExitStack) -> None:
    """A sum over tokens is multiplied by the context-parallel size, and then divided by tokens."""
    import gpt

    def loss(original: Any, *args: Any) -> Any:
        total, count, report = original(*args)
        return total * parallel_state.get_context_parallel_world_size(), count, report

    wrap(stack, gpt, "loss_of", loss)


@bug("transformers#34191", 2, "loss", "forward", per_token=True)
def mean_of_means(stack: ExitStack) -> None:
    """Microbatches with other numbers of tokens count alike."""
    import gpt

    def loss(original: Any, *args: Any) -> Any:
        total, count, report = original(*args)
        return total / count, torch.ones_like(count), report

    wrap(stack, gpt, "loss_of", loss)


@bug("transformers#36607, verl#4250", 2, "model input", "inputs", cp=2)
def labels_shifted_late(stack: ExitStack) -> None:
    """Labels are shifted after the sequence was cut: those at the cuts are wrong."""
    import gpt

    def cut(original: Any, batch: dict[str, torch.Tensor], *args: Any, **kwargs: Any) -> Any:
        found = original(batch, *args, **kwargs)
        found["labels"] = torch.roll(found["tokens"], -1, dims=1)
        return found

    wrap(stack, gpt, "get_batch_on_this_cp_rank", cut)


@bug("Megatron-Core 0.16 on gloo", 2, "decoder", "forward", pp=2, vpp=2, batch_p2p=True)
def batched_p2p(stack: ExitStack) -> None:
    """No patch: with two ranks, gloo gives the messages of a batch to the wrong receives."""
