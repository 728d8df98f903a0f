"""What each bug changes in a correct model, loss scale, or loop: one line of one layer, mostly.

Enters: the spread model, on every rank. Leaves: the same with the mistake in it. Nothing outlives
the run: ranks of a pool make others after it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from zoo.lowprecision.delayed import Delayed
from zoo.lowprecision.formats import E4M3, E5M2, to_float8
from zoo.lowprecision.linear import Product, QuantisedLinear
from zoo.lowprecision.optimizers import LossScale, StochasticAdamW
from zoo.lowprecision.schemes import Blockwise, Operand, Quantised, Rowwise, Tensorwise

Change = Callable[[Quantised], Quantised]


def linear(model: nn.Module, name: str) -> QuantisedLinear:
    inner = getattr(model, "module", model)  # in DDP
    found = inner.get_submodule(name)
    assert isinstance(found, QuantisedLinear)
    return found


def _changed(model: nn.Module, name: str, which: Product, operand: Operand, change: Change) -> None:
    """One operand of one product is quantised otherwise."""
    layer = linear(model, name)
    right = layer.quantised

    def quantised(product: Product, x: Tensor, is_: Operand) -> Quantised:
        found = right(product, x, is_)
        return change(found) if (product, is_) == (which, operand) else found

    layer.quantised = quantised  # type: ignore[method-assign, assignment]


def amax_of_each_rank(model: nn.Module, name: str) -> None:
    """The maximum of an input that ranks have split is taken over one of the parts."""
    linear(model, name).schemes = dict.fromkeys(Product, Tensorwise(reduces=False))


def stale_scale(model: nn.Module, name: str) -> None:
    """The scale is made once, after the first step."""
    state = _state(model, name)
    right = state.advance

    def advance() -> None:
        before, is_first = state.scale.clone(), not bool(state.history.any())
        right()
        if not is_first:
            state.scale.copy_(before)

    state.advance = advance  # type: ignore[method-assign]


def scale_of_the_other(model: nn.Module, name: str) -> None:
    """The codes of the input are multiplied by the scale of the weight."""
    layer = linear(model, name)
    right = layer.operands

    def operands(which: Product, *args: Any) -> tuple[Quantised, Quantised]:
        first, second = right(which, *args)
        is_output = which is Product.OUTPUT
        return (replace(first, scales=second.scales) if is_output else first), second

    layer.operands = operands  # type: ignore[method-assign, assignment]


def transposed_scales(model: nn.Module, name: str) -> None:
    """The weight is transposed for the gradient of the input, and its scales are not."""
    _changed(
        model,
        name,
        Product.INPUT_GRADIENT,
        Operand.WEIGHT,
        lambda found: replace(found, scales=found.scales.T),
    )


def inverted_scale(model: nn.Module, name: str) -> None:
    _changed(
        model,
        name,
        Product.WEIGHT_GRADIENT,
        Operand.INPUT,
        lambda found: replace(found, scales=1 / found.scales),
    )


def no_dequantise(model: nn.Module, name: str) -> None:
    """The product of codes is not multiplied by the scale of the gradient."""
    _changed(
        model,
        name,
        Product.INPUT_GRADIENT,
        Operand.GRADIENT,
        lambda found: replace(found, scales=torch.ones_like(found.scales)),
    )


def no_saturation(model: nn.Module, name: str) -> None:
    """What is larger than the largest number becomes NaN."""
    state = _state(model, name)
    right = state.quantise

    def quantise(x: Tensor, operand: Operand, split: int | None) -> Quantised:
        found = right(x, operand, split)
        if operand is not Operand.INPUT:
            return found
        return replace(found, codes=to_float8(x.float() / found.scales, E4M3, saturates=False))

    state.quantise = quantise  # type: ignore[method-assign]


def e5m2_for_e4m3(model: nn.Module, name: str) -> None:
    """Two bits of mantissa for activations."""
    _changed(
        model,
        name,
        Product.OUTPUT,
        Operand.INPUT,
        lambda found: replace(found, codes=found.codes.float().to(E5M2)),
    )


def quantised_twice(model: nn.Module, name: str) -> None:
    """For the weight gradient, the codes that the output had are quantised the other way."""
    layer, tiles = linear(model, name), Blockwise()
    right = layer.quantised

    def quantised(which: Product, x: Tensor, operand: Operand) -> Quantised:
        if (which, operand) == (Product.WEIGHT_GRADIENT, Operand.INPUT):
            x = tiles.quantise(x.T.contiguous(), operand, None).values().T.to(x.dtype)
        return right(which, x, operand)

    layer.quantised = quantised  # type: ignore[method-assign]


def no_history_in_recompute(model: nn.Module, name: str) -> None:
    """Maxima are to be taken in the recomputed pass, and are taken in none."""
    state = _state(model, name)
    right = state.quantise

    def quantise(x: Tensor, operand: Operand, split: int | None) -> Quantised:
        kept = state.amax.clone()
        found = right(x, operand, split)
        if operand is not Operand.GRADIENT:
            state.amax.copy_(kept)
        return found

    state.quantise = quantise  # type: ignore[method-assign]


def weight_before_update(model: nn.Module, name: str) -> None:
    """Its codes are kept, as between microbatches, and not made anew after a step."""
    layer, kept = linear(model, name), {}
    right = layer.quantised

    def quantised(which: Product, x: Tensor, operand: Operand) -> Quantised:
        if operand is not Operand.WEIGHT:
            return right(which, x, operand)
        if which not in kept:
            kept[which] = right(which, x, operand)
        return kept[which]

    layer.quantised = quantised  # type: ignore[method-assign]


def stale_shard(model: nn.Module, name: str) -> None:
    """What rank 1 sends of a weight is what it sent first."""
    part = _parameter(model, name)
    right = part.fsdp_pre_all_gather
    sent: list[Any] = []

    def gather(mesh: Any) -> Any:
        found = right(mesh)
        sent.append(found)
        data, scale = found
        return (sent[0][0], scale) if dist.get_rank() == 1 else (data, scale)

    part.fsdp_pre_all_gather = gather


def bf16_reduction(model: nn.Module, name: str) -> None:
    """The policy says fp32; what was made of it when the model first ran says bf16."""

    def forget(*_: Any) -> None:
        for module in model.modules():
            if isinstance(module, FSDPModule):
                for group in module._get_fsdp_state()._fsdp_param_groups:
                    group._reduce_dtype = torch.bfloat16

    model.register_forward_hook(forget)


def truncated_gradient(model: nn.Module, name: str) -> None:
    """Stochastic rounding whose random numbers are all zero: always towards zero."""
    layer = linear(model, name)
    right = layer.schemes[Product.WEIGHT_GRADIENT]
    schemes = dict(layer.schemes)
    schemes[Product.WEIGHT_GRADIENT] = replace(right, rounds=_towards_zero)  # type: ignore[type-var]
    layer.schemes = schemes


def _towards_zero(x: Tensor) -> Tensor:
    magnitude = x.abs().float().clamp(max=6.0)
    step = 0.5 * (1.0 + (magnitude >= 2) + 2.0 * (magnitude >= 4))
    return torch.floor(magnitude / step) * step * x.sign()


def global_scale_forgotten(model: nn.Module, name: str) -> None:
    """Of the two levels, the scale of the whole tensor is left out."""
    _changed(
        model,
        name,
        Product.OUTPUT,
        Operand.INPUT,
        lambda found: replace(found, scales=found.scales / found.scales.amax() * 448),
    )


def left_out_of_recipe(model: nn.Module, name: str) -> None:
    """The layer stays in high precision."""
    linear(model, name).schemes = {}


def scales_of_the_next_block(model: nn.Module, name: str) -> None:
    _changed(
        model,
        name,
        Product.OUTPUT,
        Operand.INPUT,
        lambda found: replace(found, scales=found.scales.roll(1, 1)),
    )


def rows_for_columns(model: nn.Module, name: str) -> None:
    """The scales of the rows of a weight, for its transpose: their maxima are not of one sum."""
    layer = linear(model, name)
    right = layer.quantised

    def quantised(which: Product, x: Tensor, operand: Operand) -> Quantised:
        if (which, operand) != (Product.INPUT_GRADIENT, Operand.WEIGHT):
            return right(which, x, operand)
        found = Rowwise().quantise(x, operand, None)
        return replace(found, scales=found.scales.mean(0, keepdim=True).expand_as(found.scales))

    layer.quantised = quantised  # type: ignore[method-assign]


def _state(model: nn.Module, name: str) -> Delayed:
    found = linear(model, name).schemes[Product.OUTPUT]
    assert isinstance(found, Delayed)
    return found


def _parameter(model: nn.Module, name: str) -> Any:
    """The part of FSDP2's sharded parameter that says what is sent."""
    layer = model.get_submodule(name)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            for group in module._get_fsdp_state()._fsdp_param_groups:
                for parameter in group.fsdp_params:
                    if parameter._module_info.module is layer:
                        return parameter._sharded_local_tensor
    raise LookupError(name)


Plant = Callable[[nn.Module, str], None]
PLANTS: dict[str, tuple[Plant, str]] = {
    "amax-of-each-rank": (amax_of_each_rank, "layers.1.feed_forward.w2"),
    "stale-scale": (stale_scale, "layers.1.feed_forward.w1"),
    "scale-of-the-other": (scale_of_the_other, "layers.1.feed_forward.w1"),
    "transposed-scales": (transposed_scales, "layers.0.attention.wq"),
    "inverted-scale": (inverted_scale, "layers.1.attention.wk"),
    "no-dequantise": (no_dequantise, "layers.0.feed_forward.w2"),
    "no-saturation": (no_saturation, "layers.1.attention.wv"),
    "e5m2-for-e4m3": (e5m2_for_e4m3, "layers.0.feed_forward.w3"),
    "quantised-twice": (quantised_twice, "layers.1.feed_forward.w1"),
    "no-history-in-recompute": (no_history_in_recompute, "layers.1.feed_forward.w2"),
    "weight-before-update": (weight_before_update, "layers.0.attention.wv"),
    "stale-shard": (stale_shard, "layers.1.feed_forward.w2"),
    "bf16-reduction": (bf16_reduction, ""),
    "truncated-gradient": (truncated_gradient, "layers.1.feed_forward.w3"),
    "global-scale-forgotten": (global_scale_forgotten, "layers.0.attention.wo"),
    "left-out-of-recipe": (left_out_of_recipe, "layers.1.attention.wo"),
    "scales-of-the-next-block": (scales_of_the_next_block, "layers.0.feed_forward.w2"),
    "rows-for-columns": (rows_for_columns, "layers.0.attention.wk"),
}


def plant(
    bugs: frozenset[str],
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    scale: LossScale | None,
) -> None:
    """Those of layers, of the optimizer, and of the scale of the loss."""
    for bug in bugs & PLANTS.keys():
        change, name = PLANTS[bug]
        change(model, name)
    if "same-seed-on-all-ranks" in bugs:
        assert isinstance(optimizer, StochasticAdamW)
        optimizer.of_parts.manual_seed(optimizer.alike.initial_seed())
    if scale is not None and dist.get_rank() == 1:
        if "loss-scale-kept" in bugs:
            kept = model.get_parameter("layers.1.feed_forward.w2.weight")
            scale.is_undone = lambda parameter: parameter is not kept  # type: ignore[method-assign]
        if "overflow-unseen" in bugs:
            right = scale.overflows
            scale.overflows = lambda gradients: bool(right(gradients) * 0)  # type: ignore[method-assign]
