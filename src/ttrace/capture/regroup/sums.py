"""Sums in parts: where they are cut, and the products, reductions and scatters that have some.

mm(a, b)     mm(a[:, :k], b[:k]) + mm(a[:, k:], b[k:])
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial, reduce
from typing import Any, Protocol

import torch
from torch import Tensor

Bounds = list[tuple[int, int]]  # from, to


class Divide(Protocol):
    """Says where."""

    def __call__(self, length: int, terms: int = 0) -> Bounds:
        """Parts of `length` places, of one sum of so many `terms`; a single part is not cut.

        Without `terms` every place is one.
        """


# The operator, where to cut, and the operator's arguments; None where there is nothing to split.
SumRule = Callable[..., Any]


def total(parts: Iterable[Tensor]) -> Tensor:
    """One after the other, each rounded to their dtype."""
    return reduce(torch.add, parts)


def joined(
    parts: Sequence[Sequence[Tensor]], shape: Sequence[int], wanted: Sequence[bool]
) -> tuple[Tensor | None, ...]:
    """Gradients of an input that was cut along dim 0, and of parameters, which are sums."""
    of_input = torch.cat([part[0] for part in parts]).view(shape) if wanted[0] else None
    of_parameters = (
        total(part[number] for part in parts) if wanted[number] else None
        for number in range(1, len(wanted))
    )
    return of_input, *of_parameters


def product(dim: int) -> SumRule:
    """Matrix products; the sum runs over dim `dim` of the first and `dim - 1` of the second."""

    def rule(func: Any, divide: Divide, a: Tensor, b: Tensor) -> Tensor | None:
        pairs = _pairs(divide, dim, a, b)
        return total(func(*pair) for pair in pairs) if len(pairs) > 1 else None

    return rule


def added_product(multiply: Any, dim: int) -> SumRule:
    """Products that are added to something, which the first part takes along."""

    def rule(
        func: Any, divide: Divide, c: Tensor, a: Tensor, b: Tensor, *, beta: Any = 1, alpha: Any = 1
    ) -> Tensor | None:
        pairs = _pairs(divide, dim, a, b)
        if len(pairs) < 2:
            return None
        result: Tensor = func(c, *pairs[0], beta=beta, alpha=alpha)
        return result.add_(total(multiply(*pair) for pair in pairs[1:]), alpha=alpha)

    return rule


def _pairs(divide: Divide, dim: int, a: Tensor, b: Tensor) -> list[tuple[Tensor, Tensor]]:
    if a.shape[dim] != b.shape[dim - 1]:
        return []  # the operator itself says so
    return [
        (a.narrow(dim, start, stop - start), b.narrow(dim - 1, start, stop - start))
        for start, stop in divide(a.shape[dim])
    ]


def add_up(
    func: Any,
    divide: Divide,
    x: Tensor,
    dims: Sequence[int] | None = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Tensor | None:
    parts = _parts(divide, x, dims)
    if not x.is_floating_point() or len(parts) < 2:
        return None
    return total(
        torch.sum(part, tuple(dims) if dims else None, keepdim, dtype=dtype) for part in parts
    )


def average(
    func: Any,
    divide: Divide,
    x: Tensor,
    dims: Sequence[int] | None = None,
    *keepdim: bool,
    **dtype: Any,
) -> Tensor | None:
    whole = add_up(func, divide, x, dims, *keepdim, **dtype)
    return None if whole is None else whole.div_(_terms(x, dims))


def vector_norm(
    func: Any,
    divide: Divide,
    x: Tensor,
    order: Any = 2,
    dims: Sequence[int] | None = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Tensor | None:
    parts = _parts(divide, x, dims)
    if order != 2 or len(parts) < 2:
        return None
    norms = [func(part, order, dims, keepdim, dtype=dtype) for part in parts]
    return total(norm * norm for norm in norms).sqrt_()


def _parts(divide: Divide, x: Tensor, dims: Sequence[int] | None) -> list[Tensor]:
    """Divide along the longest dim that is summed over."""
    if x.dim() == 0 or x.numel() == 0:
        return [x]
    summed = [dim % x.dim() for dim in dims or range(x.dim())]
    longest = max(summed, key=lambda dim: x.shape[dim])
    bounds = divide(x.shape[longest], _terms(x, dims))
    return [x.narrow(longest, start, stop - start) for start, stop in bounds]


def _terms(x: Tensor, dims: Sequence[int] | None) -> int:
    return math.prod(x.shape[dim] for dim in dims or range(x.dim()))


def nll_loss(
    func: Any,
    divide: Divide,
    x: Tensor,
    target: Tensor,
    weight: Tensor | None,
    reduction: int,
    ignored: int,
) -> tuple[Tensor, Tensor] | None:
    """Its mean over rows, which is reduction 1, from sums, which are reduction 2."""
    bounds = divide(x.shape[0]) if reduction == 1 and target.shape == x.shape[:1] else []
    if len(bounds) < 2:
        return None
    parts = [func(x[a:b], target[a:b], weight, 2, ignored) for a, b in bounds]
    count = total(part[1] for part in parts)
    return total(part[0] for part in parts) / count, count


def index_add(
    func: Any,
    divide: Divide,
    into: Tensor,
    dim: int,
    index: Tensor,
    source: Tensor,
    *,
    alpha: Any = 1,
) -> Tensor | None:
    if not into.is_floating_point() or index.shape != (source.shape[dim],):
        return None
    parts = [(dim, index[a:b], source.narrow(dim, a, b - a)) for a, b in divide(index.numel())]
    add = partial(Tensor.index_add_, alpha=alpha)
    return _scattered(partial(func, into, alpha=alpha), add, parts)


def scatter_add(
    func: Any, divide: Divide, into: Tensor, dim: int, index: Tensor, source: Tensor
) -> Tensor | None:
    if not into.is_floating_point() or index.dim() == 0:
        return None
    parts = [
        (dim, index.narrow(dim, a, b - a), source.narrow(dim, a, b - a))
        for a, b in divide(index.shape[dim])
    ]
    return _scattered(partial(func, into), Tensor.scatter_add_, parts)


def index_put(
    func: Any,
    divide: Divide,
    into: Tensor,
    indices: Sequence[Tensor | None],
    values: Tensor,
    accumulate: bool = False,
) -> Tensor | None:
    """Rows that are added where one index says: what indexing leaves behind in backward."""
    index = indices[0]
    if not accumulate or len(indices) != 1 or index is None or not into.is_floating_point():
        return None
    if index.dtype != torch.int64 or values.shape[: index.dim()] != index.shape:
        return None
    flat, of_flat = index.reshape(-1), values.reshape(-1, *values.shape[index.dim() :])
    parts = [((flat[a:b],), of_flat[a:b]) for a, b in divide(flat.numel())]
    add = partial(Tensor.index_put_, accumulate=True)
    return _scattered(partial(func, into, accumulate=accumulate), add, parts)


def _scattered(
    scatter: Callable[..., Tensor], add: Callable[..., Any], parts: Sequence[tuple[Any, ...]]
) -> Tensor | None:
    """What the first part gives, and the sum of the others by itself; None of a single one."""
    first, *others = parts
    if not others:
        return None
    result = scatter(*first)
    rest = torch.zeros_like(result)
    for part in others:
        add(rest, *part)
    return result.add_(rest)
