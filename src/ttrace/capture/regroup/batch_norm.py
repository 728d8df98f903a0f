"""BatchNorm in parts of the batch.

Frozen, its samples are independent. In training they depend on each other through the mean and the
variance, and in backward through two sums: these are made in parts, and the rest is written out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ttrace.capture.regroup.parts import Bounds, Divide, joined, total


def forward(
    func: Any,
    divide: Divide,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    *how: Any,
) -> tuple[Tensor, Tensor, Tensor] | None:
    """The operator also updates the running statistics, which stay its own."""
    *_, train, _, eps = how
    bounds = divide(x.shape[0], _terms(x))
    if not train or len(bounds) < 2:
        return None
    func(x, weight, bias, *how)
    wide = x.to(_wide(x.dtype))
    mean = _sums(wide, bounds) / _terms(x)
    centred = wide - _of_channels(mean, x)
    rstd = (_sums(centred.square(), bounds) / _terms(x) + eps).rsqrt_()
    out = centred * _of_channels(rstd, x)
    if weight is not None:
        out = out * _of_channels(weight, x)
    if bias is not None:
        out = out + _of_channels(bias, x)
    return out.to(x.dtype), mean, rstd


def backward(
    func: Any, divide: Divide, grad: Tensor, x: Tensor, weight: Tensor | None, *saved: Any
) -> tuple[Tensor | None, ...] | None:
    *_, mean, rstd, train, _, wanted = saved
    bounds = divide(x.shape[0], _terms(x))
    if len(bounds) < 2:
        return None
    if not train:
        parts = [func(grad[a:b], x[a:b], weight, *saved) for a, b in bounds]
        return joined(parts, x.shape, wanted)
    wide = _wide(x.dtype)
    slope = grad.to(wide)
    normed = (x.to(wide) - _of_channels(mean, x)) * _of_channels(rstd, x)
    of_weight, of_bias = _sums(slope * normed, bounds), _sums(slope, bounds)
    shared = _of_channels(of_bias, x) + normed * _of_channels(of_weight, x)
    scale = rstd if weight is None else rstd * weight
    of_x = (slope - shared / _terms(x)) * _of_channels(scale, x)
    own = x.dtype if weight is None else weight.dtype
    found = (of_x.to(x.dtype), of_weight.to(own), of_bias.to(own))
    return tuple(_if_wanted(found, wanted))


def _sums(x: Tensor, bounds: Bounds) -> Tensor:
    """Over all dims but that of the channels, in parts of the samples."""
    summed = [0, *range(2, x.dim())]
    return total(x[a:b].sum(summed) for a, b in bounds)


def _of_channels(values: Tensor, x: Tensor) -> Tensor:
    return values.view(1, -1, *(1 for _ in range(x.dim() - 2)))


def _terms(x: Tensor) -> int:
    return x.numel() // max(1, x.shape[1])


def _wide(dtype: torch.dtype) -> torch.dtype:
    """What the statistics are computed in."""
    return dtype if dtype == torch.float64 else torch.float32


def _if_wanted(found: Sequence[Tensor], wanted: Sequence[bool]) -> list[Tensor | None]:
    return [value if asked else None for value, asked in zip(found, wanted, strict=True)]
