"""The training steps of a case, on every rank of its layout; the reference is a layout of one."""

from __future__ import annotations

import warnings
from contextlib import nullcontext
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import ttrace
from ttrace.demo.model import ModelConfig, build_model
from zoo.lowprecision.case import DTYPES, Case
from zoo.lowprecision.layouts import (
    own_parts,
    own_samples,
    replicated,
    sharded,
    sum_over_sequence,
)
from zoo.lowprecision.linear import QuantisedLinear, scaled
from zoo.lowprecision.optimizers import LossScale, StochasticAdamW
from zoo.lowprecision.plants import plant
from zoo.lowprecision.recipes import RECIPES, Recipe

# chosen small: a step takes milliseconds, and blocks of 32 fit into all that two ranks hold
SIZES = ModelConfig(dim=64, hidden_dim=128, n_layers=2, n_heads=4, n_kv_heads=4, vocab_size=128)
SAMPLES, SEQUENCE = 4, 32
_LEARNING_RATE = 1e-3
# Of a loss: far too large for fp16 at first, and then large enough for small gradients.
_OVERFLOWS, _BACKOFF = 2.0**30, 2.0**-20


def train_rank(case: Case) -> None:
    """Everything one rank does."""
    # the logits are a view, as the warning says, but nobody changes them in place
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module")
    torch.manual_seed(case.seed)
    recipe = RECIPES[case.recipe]
    model = spread(case, recipe)
    optimizer = optimizer_of(case, recipe, model)
    scale = LossScale(_OVERFLOWS, _BACKOFF) if recipe.scales_loss else None
    plant(case.bugs, model, optimizer, scale)
    tracer = ttrace.attach(model, optimizer)
    for step in range(case.steps or recipe.steps):
        model.zero_grad()
        with tracer.step():
            _backward(case, recipe, model, tokens_of(case, step), scale)
            if case.layout == "tp2-sp":
                sum_over_sequence(model)
            if scale is None:
                optimizer.step()
            else:
                scale.step(optimizer, model)
            recipe.after_step(model)
    dist.barrier()


def spread(case: Case, recipe: Recipe) -> nn.Module:
    model = build_model(SIZES, seed=case.seed, dtype=DTYPES[case.dtype])
    recipe.convert(model)
    if case.is_real:
        for module in model.modules():
            if isinstance(module, QuantisedLinear):
                module.multiply = scaled
    model.to(case.device)
    if case.recomputes:
        _recompute(model.get_submodule("layers.1.feed_forward"))
    match case.layout:
        case "ddp2":
            return replicated(model, compresses=recipe.compresses)
        case "fsdp2":
            return sharded(model, case.device, recipe.policy)
        case "tp2" | "tp2-sp":
            return recipe.split(model, sequence=case.layout == "tp2-sp")
    return model


def _recompute(module: nn.Module) -> None:
    right = module.forward
    module.forward = partial(checkpoint, right, use_reentrant=False)


def optimizer_of(case: Case, recipe: Recipe, model: nn.Module) -> torch.optim.Optimizer:
    parameters = list(model.parameters())
    if recipe.is_stochastic:
        return StochasticAdamW(
            parameters,
            lr=_LEARNING_RATE,
            seed=case.seed,
            rank=dist.get_rank(),
            parts=own_parts(model),
        )
    return torch.optim.AdamW(parameters, lr=_LEARNING_RATE, foreach=False)


def _backward(
    case: Case, recipe: Recipe, model: nn.Module, tokens: Tensor, scale: LossScale | None
) -> None:
    """Means over equal parts, whose gradients are averaged, here as by data-parallel ranks."""
    parts = own_samples(tokens, case.layout).chunk(case.microbatches)
    sent: list[Tensor] = []
    for part in parts:
        is_cast = recipe.autocast is not None
        with torch.autocast(case.device, recipe.autocast) if is_cast else nullcontext():
            loss = loss_of(model, part)
        (loss if scale is None else loss * scale.value).backward()
        if recipe.compresses and len(parts) > 1:
            sent = _added_in_bf16(sent, model, len(parts))
    for number, parameter in enumerate(model.parameters()):
        assert parameter.grad is not None
        if sent:
            parameter.grad.copy_(sent[number])
        elif len(parts) > 1:
            parameter.grad /= len(parts)


def _added_in_bf16(sent: list[Tensor], model: nn.Module, parts: int) -> list[Tensor]:
    """With the gradients of one more part, as ranks send them; these are cleared."""
    added = []
    for number, parameter in enumerate(model.parameters()):
        assert parameter.grad is not None
        share = parameter.grad.bfloat16() / parts
        added.append(sent[number] + share if sent else share)
        if not sent:
            parameter.grad = None
    return added


def tokens_of(case: Case, step: int) -> Tensor:
    generator = torch.Generator().manual_seed(1000 * case.seed + step)
    shape = (SAMPLES, SEQUENCE + 1)
    return torch.randint(SIZES.vocab_size, shape, generator=generator).to(case.device)


def loss_of(model: nn.Module, tokens: Tensor) -> Tensor:
    logits = model(tokens[:, :-1].contiguous())
    return F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())
