"""Made-up bugs in megatron-core, inside what the adapter has special rules for; small models."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.transformer.moe import router
from megatron.core.transformer.moe.router import TopKRouter
from megatron.core.transformer.moe.token_dispatcher import MoEAlltoAllTokenDispatcher

from ttrace.core.blame import Blame, Phase
from zoo.bug import each
from zoo.megatron.plant import bug, once_built, wrap

_SMALL: dict[str, Any] = {"layers": 2, "microbatches": 2}
_EXPERTS = _SMALL | {"experts": 4}

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


@bug("made up", 2, Blame.of(_LINEAR, phase=Phase.FORWARD), ep=2, **_EXPERTS)
def expert_forward(stack: ExitStack) -> None:
    """One linear of one expert is a little too loud."""

    def forward(original: Any, x: torch.Tensor) -> Any:
        output, bias = original(x)
        return 1.01 * output, bias

    _around_forward(stack, _LINEAR, forward)


@bug("made up", 2, Blame.of(_LINEAR, phase=Phase.BACKWARD), ep=2, **_EXPERTS)
def expert_backward(stack: ExitStack) -> None:
    """The gradient that one linear of one expert passes back is too large."""
    _around_forward(stack, _LINEAR, lambda original, x: original(_Louder.apply(x)))


def _in_layer(router: Any) -> bool:
    return router.layer_number == 2  # Megatron counts from 1


@bug("made up", 2, Blame.of(f"{_MOE}.router", phase=Phase.FORWARD), ep=2, **_EXPERTS)
def router_choice(stack: ExitStack) -> None:
    """One router sends every token to the neighbours of its experts."""

    def forward(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        probs, routing_map = original(self, *args, **kwargs)
        if not _in_layer(self):
            return probs, routing_map
        return probs.roll(1, dims=1), routing_map.roll(1, dims=1)

    wrap(stack, TopKRouter, "forward", forward)


@bug("made up", 2, Blame.of(_MOE, phase=Phase.FORWARD), ep=2, **_EXPERTS)
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


@bug("made up", 2, *each(_ROUTERS, Phase.FORWARD), tp=2, sp=True, z_loss=0.01, **_EXPERTS)
def balance_coefficient(stack: ExitStack) -> None:
    """The load balancing loss counts once for every tensor-parallel rank."""

    def coefficient(original: Any, self: Any, kind: str) -> Any:
        return original(self, kind) * parallel_state.get_tensor_model_parallel_world_size()

    wrap(stack, TopKRouter, "get_aux_loss_coeff", coefficient)


@bug("made up", 2, *each(_ROUTERS, Phase.FORWARD), cp=2, z_loss=0.01, **_EXPERTS)
def z_loss_context(stack: ExitStack) -> None:
    """The z-loss is not averaged over context-parallel ranks."""

    def loss(original: Any, *args: Any, **kwargs: Any) -> Any:
        return original(*args, **kwargs) * parallel_state.get_context_parallel_world_size()

    wrap(stack, router, "z_loss_func", loss)


@bug("made up", 2, Blame.of("", phase=Phase.FORWARD), tp=2, sp=True, mtp=1, **_SMALL)
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


@bug(
    "made up",
    2,
    Blame.of("embedding.word_embeddings", phase=Phase.FORWARD),
    twin=mask_padding,
    twin_in_reference=True,
    tp=2,
    padded=128,
    **_SMALL,
)
def loud_tokens(stack: ExitStack) -> None:
    """Some rows of the embedding are too large where tensor parallelism looks them up."""
    mask_padding(stack)

    def forward(original: Any, tokens: torch.Tensor) -> Any:
        return original(tokens) * torch.where(tokens > 40, 1.1, 1.0)[..., None]

    _around_forward(stack, "embedding.word_embeddings", forward)
