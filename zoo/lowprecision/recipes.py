"""All recipes, by name: what becomes of the model, and in which layouts that can be trained."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy

from ttrace.demo.model import Transformer
from zoo.lowprecision.case import DATA_PARALLEL, Case, DtypeName, LayoutName
from zoo.lowprecision.delayed import Delayed, advance
from zoo.lowprecision.layouts import split_by_hand
from zoo.lowprecision.linear import Product, QuantisedLinear
from zoo.lowprecision.schemes import (
    STOCHASTIC_NV,
    Blockwise,
    Mx,
    Nv,
    Rowwise,
    Scheme,
    Tensorwise,
)

EVERYWHERE: tuple[LayoutName, ...] = (*DATA_PARALLEL, "tp2", "tp2-sp")

Split = Callable[..., nn.Module]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """`by_batches_of_ranks`: each data-parallel rank's gradient counts by itself, before the mean.

    `wraps`: what mixed precision puts around the model rounds by itself, on one rank too.
    """

    name: str
    convert: Callable[[Transformer], None] = lambda model: None
    layouts: tuple[LayoutName, ...] = EVERYWHERE
    dtypes: tuple[DtypeName, ...] = ("bf16", "fp32")
    split: Split = split_by_hand
    by_batches_of_ranks: bool = False
    wraps: bool = False
    policy: MixedPrecisionPolicy | None = None
    compresses: bool = False  # DDP sends bf16
    autocast: torch.dtype | None = None
    is_stochastic: bool = False  # the optimizer's rounding
    scales_loss: bool = False
    after_step: Callable[[nn.Module], None] = lambda model: None
    steps: int = 1

    def reference(self, case: Case) -> Case:
        return case.reference(by_batches_of_ranks=self.by_batches_of_ranks, keeps_layout=self.wraps)


def quantise_linears(model: Transformer, scheme_of: Callable[[Product], Scheme | None]) -> None:
    """Those of the blocks."""
    for block in model.layers:
        for parent in block.modules():
            for name, child in list(parent.named_children()):
                if isinstance(child, nn.Linear):
                    found = {product: scheme_of(product) for product in Product}
                    schemes = {product: scheme for product, scheme in found.items() if scheme}
                    setattr(parent, name, QuantisedLinear.of(child, schemes))


def _everywhere(scheme: Scheme, model: Transformer) -> None:
    quantise_linears(model, lambda _: scheme)


def _but_weight_gradients(scheme: Scheme, model: Transformer) -> None:
    quantise_linears(model, lambda product: None if product is Product.WEIGHT_GRADIENT else scheme)


def _delayed(model: Transformer) -> None:
    """The state of a layer is its own, and all products share it."""
    for block in model.layers:
        for parent in list(block.modules()):
            for name, child in list(parent.named_children()):
                if isinstance(child, nn.Linear):
                    state = Delayed()
                    made = QuantisedLinear.of(child, dict.fromkeys(Product, state))
                    made.scaling = state
                    setattr(parent, name, made)


def _plain(model: Transformer) -> None:
    """Linears that know of parts, and quantise nothing."""
    quantise_linears(model, lambda _: None)


def _with_wide_sums(model: Transformer) -> None:
    _plain(model)
    for module in model.modules():
        if isinstance(module, QuantisedLinear):
            module.sums_in = torch.float32


_OWN = (
    Recipe(name="tensorwise", convert=partial(_everywhere, Tensorwise())),
    Recipe(name="rowwise", convert=partial(_everywhere, Rowwise())),
    Recipe(name="rowwise-hp", convert=partial(_but_weight_gradients, Rowwise())),
    Recipe(
        name="delayed",
        convert=_delayed,
        after_step=advance,
        steps=3,
        by_batches_of_ranks=True,  # its history has them, as many times larger as there are ranks
    ),
    Recipe(name="blockwise", convert=partial(_everywhere, Blockwise())),
    Recipe(name="mxfp8", convert=partial(_everywhere, Mx())),
    Recipe(name="nvfp4", convert=partial(_everywhere, Nv())),
    Recipe(name="nvfp4-stochastic", convert=partial(_everywhere, STOCHASTIC_NV)),
)


def _of_torchao() -> tuple[Recipe, ...]:
    """None where it is not installed."""
    if find_spec("torchao") is None:
        return ()
    from zoo.lowprecision import torchao

    def recipe(name: str, its_name: str, *, gathers: bool = False, **changes: Any) -> Recipe:
        return Recipe(
            name=f"torchao-{name}",
            convert=partial(torchao.convert, recipe=its_name, emulate=True, gathers=gathers),
            split=torchao.split,
            **changes,
        )

    return (
        recipe("tensorwise", "tensorwise"),
        recipe("rowwise", "rowwise"),
        recipe("rowwise-hp", "rowwise_with_gw_hp"),
        recipe("float8-gather", "tensorwise", gathers=True, layouts=("fsdp2",)),
    )


_FP32: tuple[DtypeName, ...] = ("fp32",)
_BF16: tuple[DtypeName, ...] = ("bf16",)
_HALF = (
    Recipe(name="bf16-autocast", dtypes=_FP32, layouts=("ddp2",), autocast=torch.bfloat16),
    Recipe(
        name="bf16-fp32-reduction",
        dtypes=_FP32,
        layouts=("fsdp2",),
        wraps=True,
        policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32),
    ),
    Recipe(
        name="bf16-autocast-bf16-reduction",
        dtypes=_FP32,
        layouts=("ddp2",),
        by_batches_of_ranks=True,  # they are rounded to bf16
        compresses=True,
        autocast=torch.bfloat16,
    ),
    Recipe(
        name="bf16-bf16-reduction",
        dtypes=_FP32,
        layouts=("fsdp2",),
        wraps=True,
        policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16),
    ),
    Recipe(name="bf16-fp32-sums", dtypes=_BF16, layouts=("tp2", "tp2-sp"), convert=_with_wide_sums),
    Recipe(name="bf16-bf16-sums", dtypes=_BF16, layouts=("tp2", "tp2-sp"), convert=_plain),
    Recipe(name="bf16-stochastic", dtypes=_BF16, convert=_plain, is_stochastic=True, steps=2),
    Recipe(
        name="fp16-scaled",
        dtypes=_FP32,
        convert=_plain,
        autocast=torch.float16,
        scales_loss=True,
        steps=2,
    ),
)

RECIPES: Mapping[str, Recipe] = {recipe.name: recipe for recipe in (*_OWN, *_of_torchao(), *_HALF)}
