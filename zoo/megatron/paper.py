"""The 14 bugs of the TTrace paper's table, as far as public, in megatron-core."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from megatron.core import parallel_state, tensor_parallel
from megatron.core.distributed.param_and_grad_buffer import _ParamAndGradBucketGroup
from megatron.core.models.gpt import gpt_layer_specs
from megatron.core.tensor_parallel.layers import ColumnParallelLinear, VocabParallelEmbedding
from megatron.core.tensor_parallel.mappings import reduce_from_tensor_model_parallel_region
from megatron.core.transformer import transformer_block, transformer_layer
from megatron.core.transformer.transformer_block import TransformerBlock

from ttrace.core.blame import Blame, Phase, Stage
from zoo.bug import each
from zoo.megatron import modules as megatron_modules
from zoo.megatron.plant import bug, once_built, replace, wrap

_LINEAR = "decoder.layers.1.mlp.linear_fc1"
_E4M3_MAX = 448.0  # the format's largest number


@bug("slapo#80", 2, Blame.of("embedding.word_embeddings", phase=Phase.FORWARD), in_paper=True, tp=2)
def embedding_mask(stack: ExitStack) -> None:
    """The output's mask is made from ids that were masked already: foreign tokens keep row 0."""

    def forward(self: Any, ids: torch.Tensor) -> torch.Tensor:
        local = ids.clone() - self.vocab_start_index
        local[(ids < self.vocab_start_index) | (ids >= self.vocab_end_index)] = 0
        output = F.embedding(local, self.weight)
        output[(local < 0) | (local >= self.num_embeddings_per_partition), :] = 0.0
        return reduce_from_tensor_model_parallel_region(output, group=self.tp_group)

    replace(stack, VocabParallelEmbedding, "forward", forward)


@bug(
    "Megatron-LM fc2c81d3a6",
    1,
    Blame.of("decoder", phase=Phase.FORWARD),
    in_paper=True,
    recompute="full",
)
def recompute_input(stack: ExitStack) -> None:
    """Every layer of a recomputed chunk gets the chunk's input."""

    def checkpointed(
        self: Any, hidden: Any, mask: Any, *_: Any, rotary_pos_emb: Any, **__: Any
    ) -> Any:
        def run(layers: list[Any]) -> Callable[..., Any]:
            def forward(start: Any, mask: Any, rotary_pos_emb: Any) -> Any:
                result = start
                for layer in layers:
                    result, _ = layer(
                        hidden_states=start, attention_mask=mask, rotary_pos_emb=rotary_pos_emb
                    )
                return result

            return forward

        count = self.config.recompute_num_layers
        for first in range(0, len(self.layers), count):
            layers = list(self.layers[first : first + count])
            hidden = tensor_parallel.checkpoint(
                run(layers), self.config.distribute_saved_activations, hidden, mask, rotary_pos_emb
            )
        return hidden

    def around(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        hidden = kwargs.pop("hidden_states", None)
        mask = kwargs.pop("attention_mask", None)
        return checkpointed(self, hidden, mask, *args, **kwargs)

    wrap(stack, TransformerBlock, "_checkpointed_forward", around)


@bug(
    "Megatron-LM#906",
    2,
    Blame.at(Stage.GRADIENT_REDUCTION, Phase.MAIN_GRADIENT),
    in_paper=True,
    cp=2,
)
def context_loss_scale(stack: ExitStack) -> None:
    """Gradients are scaled by 1/dp instead of 1/(dp cp)."""
    once_built(stack, lambda ddp, _: _scale_buckets(ddp, ddp.dp_cp_group.size()))


@bug(
    "family of Megatron-LM#906",
    2,
    Blame.at(Stage.GRADIENT_REDUCTION, Phase.MAIN_GRADIENT),
    in_paper=True,
)
def data_loss_scale(stack: ExitStack) -> None:
    """Gradients are summed over data-parallel ranks, not averaged."""
    once_built(stack, lambda ddp, _: _scale_buckets(ddp, ddp.dp_cp_group.size()))


def _scale_buckets(ddp: Any, factor: float) -> None:
    for group in ddp.bucket_groups:
        for bucket in group.buckets:
            bucket.gradient_scaling_factor *= factor


@bug(
    "Megatron-LM#656, #844",
    4,
    Blame.of("embedding.word_embeddings", phase=Phase.GRADIENT_REDUCTION),
    in_paper=True,
    pp=2,
    zero1=True,
)
def tied_embedding(stack: ExitStack) -> None:
    """The gradients of the embedding and of its copy on the last stage are not added."""
    replace(stack, finalize_module(), "_allreduce_word_embedding_grads", lambda *_, **__: None)


def finalize_module() -> Any:
    """The package gives the function of the same name in its place."""
    return importlib.import_module("megatron.core.distributed.finalize_model_grads")


@bug(
    "Megatron-LM#663, #950",
    2,
    Blame.of("output_layer", phase=Phase.UPDATE),
    in_paper=True,
    zero1=True,
    overlap=True,
    untied=True,
)
def stale_parameters(stack: ExitStack) -> None:
    """The first bucket's parameters are not gathered after the step."""

    def sync(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        return None if self is skipped[0] else original(self, *args, **kwargs)

    skipped: list[Any] = [None]
    once_built(stack, lambda ddp, _: skipped.__setitem__(0, ddp.bucket_groups[0]))
    wrap(stack, _ParamAndGradBucketGroup, "start_param_sync", sync)


def _uneven(stack: ExitStack) -> None:
    """Nothing to do: Megatron divides 2, 1, 1 when told that the first stage has two layers."""


@bug(
    "Megatron-LM#1304",
    3,
    Blame.of("decoder.layers.3", phase=Phase.MISSING),
    in_paper=True,
    twin=_uneven,
    pp=3,
    first_stage=2,
)
def stage_division(stack: ExitStack) -> None:
    """Four layers over three stages by a floor division: the last layer is dropped."""

    def count(config: Any, vp_stage: Any = None, pp_rank: Any = None) -> int:
        return int(config.num_layers // config.pipeline_model_parallel_size)

    def offset(config: Any, vp_stage: Any = None, pp_rank: Any = None) -> int:
        rank = parallel_state.get_pipeline_model_parallel_rank() if pp_rank is None else pp_rank
        return int(rank * count(config))

    for module in (gpt_layer_specs, transformer_block):
        replace(stack, module, "get_num_layers_to_build", count)
    for module in (gpt_layer_specs, transformer_layer):
        replace(stack, module, "get_transformer_layer_offset", offset)


def _quantised(tensor: torch.Tensor, amax: torch.Tensor) -> torch.Tensor:
    """FP8 (E4M3) and back, with straight-through gradients."""
    scale = _E4M3_MAX / amax.clamp(min=1e-12)
    # Not every version of PyTorch saturates: what rounds to more than the largest may become NaN.
    scaled = (tensor.detach() * scale).clamp(-_E4M3_MAX, _E4M3_MAX)
    low = scaled.to(torch.float8_e4m3fn).to(tensor.dtype) / scale
    return tensor + (low - tensor.detach())


def _fp8_input(stack: ExitStack, group_of: Callable[[], Any]) -> None:
    """One linear layer quantises its input by the largest element over a group of ranks."""

    def forward(original: Any, self: Any, input_: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if getattr(self, "emulated_fp8", False):
            amax = input_.detach().abs().max()
            dist.all_reduce(amax, op=dist.ReduceOp.MAX, group=group_of())
            input_ = _quantised(input_, amax)
        return original(self, input_, *args, **kwargs)

    _mark_fp8(stack)
    wrap(stack, ColumnParallelLinear, "forward", forward)


def _mark_fp8(stack: ExitStack) -> None:
    once_built(stack, lambda _, modules: setattr(modules[_LINEAR], "emulated_fp8", True))


def _fp8_over_tensor_parallel(stack: ExitStack) -> None:
    _fp8_input(stack, parallel_state.get_tensor_and_data_parallel_group)


@bug(
    "Megatron-LM#442, fix 588ef65812",
    2,
    Blame.of(_LINEAR, phase=Phase.FORWARD),
    in_paper=True,
    twin=_fp8_over_tensor_parallel,
    twin_in_reference=True,
    tp=2,
    sp=True,
)
def fp8_amax_group(stack: ExitStack) -> None:
    """The scale of FP8 is agreed upon by data-parallel ranks, not by those that split the input."""
    _fp8_input(stack, parallel_state.get_data_parallel_group)


@bug("family of torchtitan#1878", 2, Blame.of(_LINEAR, phase=Phase.BACKWARD), in_paper=True, tp=2)
def input_gradient(stack: ExitStack) -> None:
    """A column-parallel layer does not sum the gradient of its input."""

    def change(_: Any, modules: dict[str, Any]) -> None:
        modules[_LINEAR].allreduce_dgrad = False
        modules[_LINEAR].disable_grad_reduce = True

    once_built(stack, change)


def unmark(stack: ExitStack, *endings: str) -> None:
    """Parameters that no longer say that their gradients are to be summed over tensor parallel."""

    def change(_: Any, modules: dict[str, Any]) -> None:
        for path, module in modules.items():
            if path.endswith(endings) and getattr(module, "weight", None) is not None:
                module.weight.sequence_parallel = False

    once_built(stack, change)


@bug(
    "Megatron-LM#599, #619",
    2,
    Blame.of("decoder.layers.1.mlp.router", phase=Phase.GRADIENT_REDUCTION),
    in_paper=True,
    tp=2,
    sp=True,
    experts=4,
)
def router_sync(stack: ExitStack) -> None:
    """The router's gradient is not summed over ranks that hold parts of the sequence."""
    unmark(stack, "layers.1.mlp.router")


@bug(
    "Megatron-LM#1446, TransformerEngine#1528",
    2,
    Blame.of("decoder.final_layernorm", phase=Phase.GRADIENT_REDUCTION),
    in_paper=True,
    tp=2,
    sp=True,
)
def norm_sync(stack: ExitStack) -> None:
    """The same for the last norm."""
    unmark(stack, "final_layernorm")


def _delayed_scaling(stack: ExitStack, *, restore: bool) -> None:
    """FP8 by the largest element of the previous call; a recomputed call must use the same."""
    saved: list[torch.Tensor] = []

    def forward(original: Any, self: Any, input_: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if not getattr(self, "emulated_fp8", False):
            return original(self, input_, *args, **kwargs)
        now = getattr(self, "amax", torch.tensor(4.0))
        again = torch._C._current_graph_task_id() >= 0
        if again and restore:
            used = saved.pop(0)
        else:
            used = now
            saved.append(now)
        if not again:
            self.amax = input_.detach().abs().max()
        return original(self, _quantised(input_, used), *args, **kwargs)

    _mark_fp8(stack)
    wrap(stack, ColumnParallelLinear, "forward", forward)


def _restored_scale(stack: ExitStack) -> None:
    _delayed_scaling(stack, restore=True)


@bug(
    "TransformerEngine#738, #1723",
    1,
    Blame.of(_LINEAR, phase=Phase.FORWARD),
    in_paper=True,
    twin=_restored_scale,
    twin_in_reference=True,
    recompute="full",
)
def fp8_recompute(stack: ExitStack) -> None:
    """The recomputed forward quantises by the scale of a later call."""
    _delayed_scaling(stack, restore=False)


@bug(
    "Megatron-LM#1464, TransformerEngine#1557",
    2,
    *each(
        (f"decoder.layers.{number}.self_attention.core_attention" for number in (3, 2, 1, 0)),
        Phase.BACKWARD,
    ),
    in_paper=True,
    cp=2,
)
def context_attention_gradient(stack: ExitStack) -> None:
    """Keys and values get the gradient of this rank's queries only; forward is exact."""

    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        chunks, rank = grads[0].chunk(2 * ctx.group.size()), ctx.group.rank()
        return torch.cat([chunks[rank], chunks[-1 - rank]]), None

    replace(stack, megatron_modules._GatherSequence, "backward", staticmethod(backward))


@bug(
    "Megatron-LM#1528, TransformerEngine#1677",
    4,
    Blame.of("decoder.final_layernorm", phase=Phase.GRADIENT_REDUCTION),
    in_paper=True,
    tp=2,
    sp=True,
    cp=2,
)
def norm_gradient_twice(stack: ExitStack) -> None:
    """A norm's gradient is summed over tensor parallel once more."""

    def around(original: Any, model: Any, *args: Any, **kwargs: Any) -> None:
        original(model, *args, **kwargs)
        for chunk in model:
            for name, parameter in chunk.named_parameters():
                if "final_layernorm" in name:
                    group = parallel_state.get_tensor_model_parallel_group()
                    dist.all_reduce(parameter.main_grad, group=group)

    wrap(stack, finalize_module(), "_allreduce_non_tensor_model_parallel_grads", around)
