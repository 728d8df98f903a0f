"""A linear whose three products have quantised operands, alone or as a part of one on two ranks.

Enters: activations in a high precision. Leaves: the product, in the same. Tensor parallelism is
made by hand, as in Megatron-LM: outputs are split (COLUMN) or inputs (ROW); where activations
between them are split along the sequence, they are gathered before and scattered after.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, cast

import torch
from torch import Tensor, nn

from zoo.lowprecision.schemes import Operand, Quantised, Scheme
from zoo.native.collectives import (
    CopyToRanks,
    Gather,
    SumOverRanks,
    gathered,
    own_part,
    summed,
)


class Product(StrEnum):
    OUTPUT = "output"
    INPUT_GRADIENT = "input gradient"
    WEIGHT_GRADIENT = "weight gradient"


class Part(StrEnum):
    WHOLE = "whole"
    COLUMN = "column"  # outputs are split
    ROW = "row"  # inputs are split


Multiply = Callable[[Quantised, Quantised, torch.dtype], Tensor]
# The dim of a matrix that ranks have split, by what it is.
_SPLIT: Mapping[Part, Mapping[Operand, int | None]] = {
    Part.WHOLE: dict.fromkeys(Operand),
    Part.COLUMN: {Operand.INPUT: None, Operand.WEIGHT: 0, Operand.GRADIENT: 1},
    Part.ROW: {Operand.INPUT: 1, Operand.WEIGHT: 1, Operand.GRADIENT: None},
}


def emulated(a: Quantised, b: Quantised, dtype: torch.dtype) -> Tensor:
    """a times b transposed, in fp32."""
    return (a.values() @ b.values().T).to(dtype)


def scaled(a: Quantised, b: Quantised, dtype: torch.dtype) -> Tensor:
    """The same by the device's own product of codes; scales are of tensors or of rows."""
    of_a, of_b = (each.scales.float().contiguous() for each in (a, b))
    if of_a.numel() == 1 and of_b.numel() == 1:
        of_a, of_b = of_a.reshape(()), of_b.reshape(())
    else:
        of_a = of_a.expand(a.codes.shape[0], 1).contiguous()
        of_b = of_b.expand(b.codes.shape[0], 1).contiguous().T
    return torch._scaled_mm(a.codes, b.codes.T, of_a, of_b, out_dtype=dtype)


class QuantisedLinear(nn.Linear):
    """`schemes` has what quantises the operands of a product; what it has not stays as it is."""

    schemes: Mapping[Product, Scheme]
    multiply: Multiply
    part: Part
    is_sequence_split: bool
    sums_in: torch.dtype | None  # what terms of ranks are added in

    @classmethod
    def of(cls, linear: nn.Linear, schemes: Mapping[Product, Scheme]) -> QuantisedLinear:
        """It takes over the parameters."""
        made = cls(linear.in_features, linear.out_features, bias=False, device="meta")
        made.weight, made.bias = linear.weight, linear.bias
        made.schemes, made.multiply = schemes, emulated
        made.part, made.is_sequence_split, made.sums_in = Part.WHOLE, False, None
        return made

    def forward(self, x: Tensor) -> Tensor:
        if self.part is Part.COLUMN:
            x = Gather.apply(x, 1) if self.is_sequence_split else CopyToRanks.apply(x)
        if torch.is_autocast_enabled("cpu"):
            x = x.to(torch.get_autocast_dtype("cpu"))
        weight = self.weight.to(x.dtype)
        y = cast(Tensor, _Products.apply(x.flatten(0, -2), weight, self))
        y = y.unflatten(0, x.shape[:-1])
        if self.part is Part.ROW:
            wide = y.to(self.sums_in or y.dtype)
            wide = (
                ReduceScatter.apply(wide, 1) if self.is_sequence_split else SumOverRanks.apply(wide)
            )
            y = wide.to(y.dtype)
        return y if self.bias is None else y + self.bias

    def product(self, which: Product, a: Tensor, a_is: Operand, b: Tensor, b_is: Operand) -> Tensor:
        """a times b transposed, for the output or a gradient."""
        if which not in self.schemes:
            return a @ b.T
        first, second = self.operands(which, a, a_is, b, b_is)
        return self.multiply(first, second, a.dtype)

    def operands(
        self, which: Product, a: Tensor, a_is: Operand, b: Tensor, b_is: Operand
    ) -> tuple[Quantised, Quantised]:
        return self.quantised(which, a, a_is), self.quantised(which, b, b_is)

    def quantised(self, which: Product, x: Tensor, operand: Operand) -> Quantised:
        split = _SPLIT[self.part][operand]
        if split is not None and _is_transposed(which, operand):
            split = 1 - split
        return self.schemes[which].quantise(x.contiguous(), operand, split)


def _is_transposed(which: Product, operand: Operand) -> bool:
    """Products sum over the last dim of both operands."""
    if which is Product.WEIGHT_GRADIENT:
        return True
    return which is Product.INPUT_GRADIENT and operand is Operand.WEIGHT


class _Products(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, layer: QuantisedLinear) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.layer = layer
        return layer.product(Product.OUTPUT, x, Operand.INPUT, weight, Operand.WEIGHT)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        (x, weight), layer, grad = ctx.saved_tensors, ctx.layer, grads[0]
        of_x = layer.product(
            Product.INPUT_GRADIENT, grad, Operand.GRADIENT, weight.T, Operand.WEIGHT
        )
        of_weight = layer.product(
            Product.WEIGHT_GRADIENT, grad.T, Operand.GRADIENT, x.T, Operand.INPUT
        )
        return of_x, of_weight, None


class ReduceScatter(torch.autograd.Function):
    """Each rank holds a term, and keeps its part along `dim` of the sum."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, dim: int) -> Tensor:
        ctx.dim = dim
        return own_part(summed(tensor), dim)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return gathered(grads[0], ctx.dim), None


class GatherForAll(torch.autograd.Function):
    """Parts along `dim` of all ranks, which then all do the same with the whole."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, dim: int) -> Tensor:
        ctx.dim = dim
        return gathered(tensor, dim)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return own_part(grads[0], ctx.dim), None
