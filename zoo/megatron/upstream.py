"""More real bugs of Megatron-LM, torchtitan and others, in megatron-core: forward and backward."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.models.common.embeddings import rotary_pos_embedding
from megatron.core.models.gpt import gpt_layer_specs
from megatron.core.tensor_parallel import mappings
from megatron.core.tensor_parallel.layers import RowParallelLinear
from megatron.core.transformer import transformer_layer
from megatron.core.transformer.moe.moe_utils import MoEAuxLossAutoScaler
from megatron.core.transformer.moe.router import TopKRouter
from megatron.core.transformer.moe.token_dispatcher import MoEAlltoAllTokenDispatcher

from ttrace.core.blame import Blame, Phase, Stage
from zoo.bug import each
from zoo.megatron import modules as megatron_modules
from zoo.megatron.plant import bug, once_built, replace, wrap

_LAYERS = tuple(f"decoder.layers.{number}" for number in range(4))
_ROUTERS = tuple(f"{layer}.mlp.router" for layer in _LAYERS)
_OF_EMBEDDING = (Blame.of("embedding.word_embeddings", phase=Phase.WEIGHT_GRADIENT),)
_ROW = "decoder.layers.1.mlp.linear_fc2"


# The auxiliary loss itself is right; the router adds its gradient in backward, scaled.
@bug("Megatron-LM#2237", 2, *each(_ROUTERS, Phase.BACKWARD), cp=2, experts=4)
def auxiliary_loss_context(stack: ExitStack) -> None:
    """The auxiliary loss is not multiplied by the context-parallel size, as the main loss is."""

    def scaled(original: Any, scale: torch.Tensor) -> None:
        original(scale / parallel_state.get_context_parallel_world_size())

    inner = MoEAuxLossAutoScaler.set_loss_scale
    replace(stack, MoEAuxLossAutoScaler, "set_loss_scale", staticmethod(lambda s: scaled(inner, s)))


# The coefficient is part of the loss: it is wrong when the router makes it.
@bug("Megatron-LM cac8d1a3f0", 2, *each(_ROUTERS, Phase.FORWARD), tp=2, sp=True, experts=4)
def auxiliary_loss_tensor(stack: ExitStack) -> None:
    """The auxiliary loss counts once for every tensor-parallel rank."""

    def coefficient(original: Any, self: Any, kind: str) -> Any:
        return original(self, kind) * parallel_state.get_tensor_model_parallel_world_size()

    wrap(stack, TopKRouter, "get_aux_loss_coeff", coefficient)


@bug("torchtitan#4245", 2, Blame.of(_ROW, phase=Phase.FORWARD), tp=2)
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
    *each(
        (
            f"{layer}.{linear}"
            for layer in reversed(_LAYERS)
            for linear in ("mlp.linear_fc2", "self_attention.linear_proj")
        ),
        Phase.BACKWARD,
    ),
    *_OF_EMBEDDING,  # it sums over ranks as well, and its input has no gradient
    tp=2,
)
def gradient_reduced_again(stack: ExitStack) -> None:
    """The gradient of a sum over ranks is summed over them as well."""

    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        total = grad.clone()
        dist.all_reduce(total, group=parallel_state.get_tensor_model_parallel_group())
        return total, None

    region = mappings._ReduceFromModelParallelRegion
    replace(stack, region, "backward", staticmethod(backward))


@bug(
    "TransformerEngine#530",
    2,
    *each(
        (
            f"{layer}.{linear}"
            for layer in reversed(_LAYERS)
            for linear in ("mlp.linear_fc1", "self_attention.linear_qkv")
        ),
        Phase.WEIGHT_GRADIENT,
    ),
    *_OF_EMBEDDING,  # as the output layer, to which it is tied
    tp=2,
    sp=True,
)
def gathered_in_wrong_order(stack: ExitStack) -> None:
    """In backward the parts of the sequence are gathered in another order than the gradient's."""
    from megatron.core.tensor_parallel import layers

    def gather(original: Any, output: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        handle = original(output, *args, **kwargs)
        if torch._C._current_graph_task_id() >= 0:
            handle.wait() if handle is not None else None
            output.copy_(torch.cat(tuple(reversed(output.chunk(2)))))
        return handle

    wrap(stack, layers, "dist_all_gather_func", gather)


@bug(
    "torchtitan#3206, #3681",
    2,
    *each((f"{layer}.self_attention.core_attention" for layer in _LAYERS), Phase.FORWARD),
    cp=2,
)
def keys_in_rank_order(stack: ExitStack) -> None:
    """Gathered keys and values stand rank after rank, not in the order of the sequence."""

    def forward(ctx: Any, local: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        parts = [torch.empty_like(local) for _ in range(group.size())]
        dist.all_gather(parts, local.contiguous(), group=group)
        return torch.cat(parts)

    replace(stack, megatron_modules._GatherSequence, "forward", staticmethod(forward))


@bug(
    "Megatron-LM 54d4b3ddbb",
    2,
    *each((f"{x}.mlp" for x in _LAYERS), Phase.FORWARD),
    ep=2,
    experts=4,
)
def expert_rows_mixed(stack: ExitStack) -> None:
    """Tokens from several ranks are sorted by counts of the wrong experts."""

    def preprocess(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        counts = self.num_global_tokens_per_local_expert
        self.num_global_tokens_per_local_expert = counts.flip(-1).contiguous()
        return result

    wrap(stack, MoEAlltoAllTokenDispatcher, "preprocess", preprocess)


@bug("torchtitan#792", 2, Blame.of("rotary_pos_emb", phase=Phase.FORWARD), cp=2)
def positions_of_first_rank(stack: ExitStack) -> None:
    """Every rank rotates by the first positions, whatever part of the sequence it holds."""

    def first(pos_emb: torch.Tensor, seq_dim: int, cp_group: Any) -> torch.Tensor:
        return pos_emb.narrow(seq_dim, 0, pos_emb.shape[seq_dim] // cp_group.size())

    replace(stack, rotary_pos_embedding, "get_pos_emb_on_this_cp_rank", first)


@bug("Megatron-LM b759cd37e6", 2, Blame.of("decoder.layers.2", phase=Phase.MISSING), pp=2)
def layer_offset(stack: ExitStack) -> None:
    """The second stage believes to begin one layer later, and loads the weights of others."""

    def offset(original: Any, *args: Any, **kwargs: Any) -> int:
        found = int(original(*args, **kwargs))
        return found + 1 if found else 0

    wrap(stack, transformer_layer, "get_transformer_layer_offset", offset)
    wrap(stack, gpt_layer_specs, "get_transformer_layer_offset", offset)


# Gradients are to be summed over these ranks, as they are: it is the loss that is too large.
@bug("Megatron-LM 5946e24b37", 2, Blame.at(Stage.LOSS, Phase.FORWARD), cp=2, per_token=True)
def token_loss_context(stack: ExitStack) -> None:
    """A sum over tokens is multiplied by the context-parallel size, and then divided by tokens."""
    import gpt

    def loss(original: Any, *args: Any) -> Any:
        total, count, report = original(*args)
        return total * parallel_state.get_context_parallel_world_size(), count, report

    wrap(stack, gpt, "loss_of", loss)


# It says two wrong things: the loss, and the number of tokens by which gradients are divided.
@bug(
    "transformers#34191",
    2,
    Blame.at(Stage.LOSS, Phase.FORWARD),
    Blame.at(Stage.GRADIENT_REDUCTION, Phase.MAIN_GRADIENT),
    per_token=True,
)
def mean_of_means(stack: ExitStack) -> None:
    """Microbatches with other numbers of tokens count alike."""
    import gpt

    def loss(original: Any, *args: Any) -> Any:
        total, count, report = original(*args)
        return total / count, torch.ones_like(count), report

    wrap(stack, gpt, "loss_of", loss)


@bug("transformers#36607, verl#4250", 2, Blame.at(Stage.MODEL_INPUT, Phase.INPUTS), cp=2)
def labels_shifted_late(stack: ExitStack) -> None:
    """Labels are shifted after the sequence was cut: those at the cuts are wrong."""
    import gpt

    def cut(original: Any, batch: dict[str, torch.Tensor], *args: Any, **kwargs: Any) -> Any:
        found = original(batch, *args, **kwargs)
        found["labels"] = torch.roll(found["tokens"], -1, dims=1)
        return found

    wrap(stack, gpt, "get_batch_on_this_cp_rank", cut)


# Stages hand activations on inside the decoder, between two of its layers: the layers are right,
# what the second one is given is not what the first one made.
@bug(
    "Megatron-Core 0.16 on gloo",
    2,
    Blame.of("decoder", phase=Phase.FORWARD),
    mistake="batch_p2p",
    pp=2,
    vpp=2,
    batch_p2p=True,
)
def batched_p2p(stack: ExitStack) -> None:
    """No patch: with two ranks, gloo gives the messages of a batch to the wrong receives."""


@bug(
    "Megatron-Core 0.16 on gloo",
    2,
    Blame.of("decoder", phase=Phase.FORWARD),
    mistake="deallocate",
    attempts=5,
    pp=2,
    vpp=2,
    deallocate=True,
)
def freed_before_sent(stack: ExitStack) -> None:
    """No patch: a stage frees an output that is still being sent (11 of 13 runs were wrong)."""
