"""Splitting: one process that rounds its matmuls as n ranks of tensor parallelism do.

    ttrace.capture.rounding.split_linears(model, 8)

A row-parallel linear adds n partial products, each rounded to the dtype of the activations; the
backward of a column-parallel one does so with the gradient of its input. Here every nn.Linear does
both, which rounds at least as often as any tensor-parallel layout of it. In a perturbed reference
(`ttrace diff --split-reductions 8`) it makes the tolerances know of n.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from ttrace.capture.guard import Guard, entry
from ttrace.errors import UsageError


def split_linears(
    model: nn.Module | Iterable[nn.Module], ways: int, guard: Guard | None = None
) -> None:
    """Make every nn.Linear whose dims divide by `ways` work in `ways` parts from now on."""
    if ways < 1:
        raise UsageError(f"a reduction splits into at least one part, found {ways}")
    modules = [model] if isinstance(model, nn.Module) else model
    # A subclass with a forward of its own may compute something else.
    linears = [
        module
        for part in modules
        for module in part.modules()
        if isinstance(module, nn.Linear) and type(module).forward is nn.Linear.forward
    ]
    found = [linear for linear in linears if _divides(linear, ways)]
    if not found:
        raise UsageError(
            f"none of the {len(linears)} nn.Linear of the model has dims that divide by {ways}: "
            "there is nothing to split"
        )
    guard = guard or Guard()
    for linear in found:
        # An attribute of the object goes before the method of its class.
        linear.forward = _SplitForward(linear, ways, guard)  # type: ignore[method-assign]


def _divides(linear: nn.Linear, ways: int) -> bool:
    return linear.in_features % ways == 0 and linear.out_features % ways == 0


def _plain_forward(split: _SplitForward, input: Tensor) -> Tensor:  # noqa: A002
    return nn.Linear.forward(split.linear, input)


class _SplitForward:
    """What a linear layer runs instead of its forward; a copy of the layer has that again."""

    def __init__(self, linear: nn.Linear, ways: int, guard: Guard) -> None:
        self.linear = linear
        self.guard = guard
        self._ways = ways

    @entry("a linear layer in parts", _plain_forward)
    def __call__(self, input: Tensor) -> Tensor:  # noqa: A002  (as that of the class)
        y: Tensor = _SplitProduct.apply(input, self.linear.weight, self._ways, self.guard)
        return y if self.linear.bias is None else y + self.linear.bias

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (self.linear, "forward")


def _plain_gradients(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None]:
    x, weight = ctx.saved_tensors
    return grad @ weight, grad.flatten(0, -2).T @ x.flatten(0, -2), None, None


class _SplitProduct(torch.autograd.Function):
    """x @ weight.T; partial products are added in the dtype of x, one after the other."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, ways: int, guard: Guard) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.ways, ctx.guard = ways, guard
        parts = zip(x.chunk(ways, dim=-1), weight.chunk(ways, dim=1), strict=True)
        return _total([part @ rows.T for part, rows in parts])

    @staticmethod
    @entry("the gradient of a linear layer in parts", _plain_gradients)
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None, None]:
        x, weight = ctx.saved_tensors
        (grad,) = grads
        parts = zip(grad.chunk(ctx.ways, dim=-1), weight.chunk(ctx.ways, dim=0), strict=True)
        of_weight = grad.flatten(0, -2).T @ x.flatten(0, -2)
        return _total([part @ columns for part, columns in parts]), of_weight, None, None


def _total(terms: list[Tensor]) -> Tensor:
    return functools.reduce(torch.add, terms)
