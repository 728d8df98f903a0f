"""More bugs for Megatron-Core, inside what the adapter has special rules for."""

from contextlib import ExitStack
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.tensor_parallel import mappings
from megatron.core.transformer.moe import router
from megatron.core.transformer.moe.router import TopKRouter
from megatron.core.transformer.moe.token_dispatcher import MoEAlltoAllTokenDispatcher
from megatron.core.transformer.utils import make_sharded_tensors_for_checkpoint
from torch import nn

from zoo.megatron.registry import bug, once_built, wrap

_MOE = "decoder.layers.1.mlp"
_LINEAR = f"{_MOE}.experts.local_experts.1.linear_fc2"


class _Louder(torch.autograd.Function):
    """The identity, with a gradient of one tenth too much."""

    @staticmethod
    def forward(_: Any, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.clone()

    @staticmethod
    def backward(_: Any, *grads: torch.Tensor) -> torch.Tensor:
        return 1.1 * grads[0]


def _around_forward(stack: ExitStack, path: str, forward: Any) -> None:
    """Replace the forward of one module by `forward(original, input)`."""

    def change(_: Any, modules: dict[str, Any]) -> None:
        if path in modules:
            module, original = modules[path], modules[path].forward
            module.forward = lambda x, *args, **kwargs: forward(
                lambda y: original(y, *args, **kwargs), x
            )

    once_built(stack, change)


@bug("chosen", 2, _LINEAR, "forward", ep=2, experts=4)
def expert_forward(stack: ExitStack) -> None:
    """One linear of one expert is a little too loud."""

    def forward(original: Any, x: torch.Tensor) -> Any:
        output, bias = original(x)
        return 1.01 * output, bias

    _around_forward(stack, _LINEAR, forward)


@bug("chosen", 2, _LINEAR, "backward", ep=2, experts=4)
def expert_backward(stack: ExitStack) -> None:
    """The gradient that one linear of one expert passes back is too large."""
    _around_forward(stack, _LINEAR, lambda original, x: original(_Louder.apply(x)))


def _in_layer(router: Any) -> bool:
    return router.layer_number == 2  # Megatron counts from 1


@bug("chosen", 2, f"{_MOE}.router", "forward", ep=2, experts=4)
def router_choice(stack: ExitStack) -> None:
    """One router sends every token to the neighbours of its experts."""

    def forward(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        probs, routing_map = original(self, *args, **kwargs)
        if not _in_layer(self):
            return probs, routing_map
        return probs.roll(1, dims=1), routing_map.roll(1, dims=1)

    wrap(stack, TopKRouter, "forward", forward)


@bug("chosen", 2, _MOE, "forward", ep=2, experts=4)
def dispatcher_order(stack: ExitStack) -> None:
    """One layer's dispatcher gives some tokens to the wrong expert."""

    def change(_: Any, modules: dict[str, Any]) -> None:
        modules[_MOE].token_dispatcher.planted = True

    def postprocess(original: Any, self: Any, *args: Any) -> Any:
        tokens, counts, probs = original(self, *args)
        if getattr(self, "planted", False):
            tokens = tokens.roll(1, dims=0)
        return tokens, counts, probs

    once_built(stack, change)
    wrap(stack, MoEAlltoAllTokenDispatcher, "dispatch_postprocess", postprocess)


_ROUTERS = ("decoder.layers.0.mlp.router", "decoder.layers.1.mlp.router")


@bug("chosen", 2, _ROUTERS, "forward", tp=2, sp=True, experts=4)
def balance_coefficient(stack: ExitStack) -> None:
    """The load balancing loss counts once for every tensor-parallel rank."""

    def coefficient(original: Any, self: Any, kind: str) -> Any:
        return original(self, kind) * parallel_state.get_tensor_model_parallel_world_size()

    wrap(stack, TopKRouter, "get_aux_loss_coeff", coefficient)


@bug("chosen", 2, _ROUTERS, "forward", cp=2, experts=4, z_loss=0.01)
def z_loss_context(stack: ExitStack) -> None:
    """The z-loss is not averaged over context-parallel ranks."""

    def loss(original: Any, *args: Any, **kwargs: Any) -> Any:
        return original(*args, **kwargs) * parallel_state.get_context_parallel_world_size()

    wrap(stack, router, "z_loss_func", loss)


@bug("chosen", 2, "(model)", "forward", tp=2, sp=True, mtp=1)
def head_coefficient(stack: ExitStack) -> None:
    """The loss of the multi-token head has another weight."""
    import gpt

    def configure(original: Any, layout: Any) -> Any:
        config = original(layout)
        config.mtp_loss_scaling_factor *= layout.tp
        return config

    wrap(stack, gpt, "configure", configure)


def mask_padding(stack: ExitStack) -> None:
    """Padding gets no probability, as a model must do whose layouts pad differently."""

    def change(_: Any, modules: dict[str, Any]) -> None:
        layer = modules.get("output_layer")
        if layer is None:
            return
        original = layer.forward

        def forward(*args: Any, **kwargs: Any) -> Any:
            logits, bias = original(*args, **kwargs)
            start = parallel_state.get_tensor_model_parallel_rank() * logits.shape[-1]
            beyond = torch.arange(start, start + logits.shape[-1]) >= 60
            return logits.masked_fill(beyond, -30.0), bias

        layer.forward = forward

    once_built(stack, change)


@bug("chosen", 2, "embedding.word_embeddings", "forward", twin=mask_padding, tp=2, padded=128)
def loud_tokens(stack: ExitStack) -> None:
    """Some rows of the embedding are too large where tensor parallelism looks them up."""
    mask_padding(stack)

    def forward(original: Any, tokens: torch.Tensor) -> Any:
        return original(tokens) * torch.where(tokens > 40, 1.1, 1.0)[..., None]

    _around_forward(stack, "embedding.word_embeddings", forward)


class OwnMLP(nn.Module):
    """A user's tensor-parallel MLP: parameters say that they are split, but not how."""

    def __init__(self, config: Any, **_: Any) -> None:
        super().__init__()
        size = parallel_state.get_tensor_model_parallel_world_size()
        inner, width = config.ffn_hidden_size // size, config.hidden_size
        self.up = nn.Parameter(torch.empty(inner, width))
        self.down = nn.Parameter(torch.empty(width, inner))
        for parameter in (self.up, self.down):  # without it the gradient norm counts one rank's
            parameter.tensor_model_parallel = True  # type: ignore[attr-defined]

    def forward(self, hidden: torch.Tensor, **_: Any) -> tuple[torch.Tensor, None]:
        hidden = mappings.copy_to_tensor_model_parallel_region(hidden)
        inner = torch.relu(hidden @ self.up.T)
        return mappings.reduce_from_tensor_model_parallel_region(inner @ self.down.T), None

    def start(self) -> None:
        """The same values in every layout."""
        index = parallel_state.get_tensor_model_parallel_rank()
        generator = torch.Generator().manual_seed(0)
        for parameter, dim in ((self.up, 0), (self.down, 1)):
            size = parallel_state.get_tensor_model_parallel_world_size()
            shape = [n * size if at == dim else n for at, n in enumerate(parameter.shape)]
            whole = torch.randn(shape, generator=generator) / 8
            parameter.data.copy_(whole.chunk(size, dim)[index])


class OwnMLPTold(OwnMLP):
    """The same, with a checkpoint that says it."""

    def sharded_state_dict(self, prefix: str, sharded_offsets: Any, metadata: Any) -> Any:
        return make_sharded_tensors_for_checkpoint(
            self.state_dict(prefix="", keep_vars=True),
            prefix,
            {"up": 0, "down": 1},
            sharded_offsets,
            tp_group=parallel_state.get_tensor_model_parallel_group(),
            dp_cp_group=metadata["dp_cp_group"],
        )


def _with_own(stack: ExitStack, kind: type[OwnMLP]) -> None:
    import gpt

    def model(original: Any, **kwargs: Any) -> Any:
        for spec in kwargs["transformer_layer_spec"].layer_specs[:1]:
            spec.submodules.mlp = kind
        return original(**kwargs)

    def generate(original: Any, chunks: Any) -> None:
        original(chunks)
        for module in (module for chunk in chunks for module in chunk.modules()):
            if isinstance(module, OwnMLP):
                module.start()

    wrap(stack, gpt, "GPTModel", model)
    wrap(stack, gpt.ttrace, "generate_parameters", generate)


@bug("no bug", 2, (), "", tp=2)
def own_module(stack: ExitStack) -> None:
    _with_own(stack, OwnMLP)


@bug("no bug", 2, (), "", tp=2)
def own_module_told(stack: ExitStack) -> None:
    _with_own(stack, OwnMLPTold)
