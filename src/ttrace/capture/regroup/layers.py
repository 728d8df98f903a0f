"""Layers in parts of their samples: in backward, parameter gradients are sums over them.

The samples of BatchNorm are independent where it is frozen. In training they depend on each other
through the mean and the variance, and in backward through two sums: these are made in parts, and
the rest is written out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ttrace.capture.regroup.sums import Bounds, Divide, SumRule, joined, total

Gradients = tuple[Tensor | None, ...]


def norm_of_rows(statistics: int) -> SumRule:
    """Norms over the last dims, with so many statistics of each row: mean and rstd, or rstd."""

    def rule(
        func: Any, divide: Divide, grad: Tensor, x: Tensor, shape: Sequence[int], *given: Any
    ) -> Gradients | None:
        saved, parameters, wanted = given[:statistics], given[statistics:-1], given[-1]
        g, v, *of_rows = _by_rows(x, shape, (grad, x), saved)
        bounds = divide(v.shape[0])
        if len(bounds) < 2 or not any(wanted[1:]):
            return None
        parts = [
            func(g[a:b], v[a:b], shape, *(each[a:b] for each in of_rows), *parameters, wanted)
            for a, b in bounds
        ]
        return joined(parts, x.shape, wanted)

    return rule


def _by_rows(
    x: Tensor, shape: Sequence[int], values: Sequence[Tensor], of_rows: Sequence[Tensor]
) -> list[Tensor]:
    """All positions in one dim; `of_rows` have one number for each."""
    rows = x.numel() // max(1, math.prod(shape))
    ones = (1 for _ in shape)
    flat = (rows, *ones)
    return [v.reshape(rows, *shape) for v in values] + [r.reshape(flat) for r in of_rows]


def grouped_norm(
    func: Any,
    divide: Divide,
    grad: Tensor,
    x: Tensor,
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    samples: int,
    channels: int,
    positions: int,
    groups: int,
    wanted: Sequence[bool],
) -> Gradients | None:
    bounds = divide(samples, samples * positions)
    if len(bounds) < 2 or not any(wanted[1:]):
        return None
    parts = []
    for a, b in bounds:
        sizes = (b - a, channels, positions, groups)
        parts.append(func(grad[a:b], x[a:b], mean[a:b], rstd[a:b], weight, *sizes, wanted))
    return joined(parts, x.shape, wanted)


def convolution(
    func: Any, divide: Divide, x: Tensor, weight: Tensor, bias: Tensor | None, *how: Any
) -> Tensor | None:
    """A sample by itself is the same sum, which a kernel may make otherwise for fewer samples."""
    bounds = divide(x.shape[0])
    if len(bounds) < 2:
        return None
    return torch.cat([func(x[a:b], weight, bias, *how) for a, b in bounds])


def convolution_backward(
    func: Any, divide: Divide, grad: Tensor, x: Tensor, weight: Tensor, *how: Any
) -> Gradients | None:
    bounds = divide(x.shape[0], grad.numel() // max(1, grad.shape[1]))
    if len(bounds) < 2:
        return None
    parts = [func(grad[a:b], x[a:b], weight, *how) for a, b in bounds]
    return joined(parts, x.shape, how[-1])


def embedding(
    func: Any,
    divide: Divide,
    grad: Tensor,
    indices: Tensor,
    rows: int,
    padding: int,
    by_count: bool,
) -> Tensor | None:
    bounds = divide(indices.numel())
    if len(bounds) < 2 or by_count:  # which divides by how often an index stands in the whole
        return None
    flat, of_flat = indices.reshape(-1), grad.reshape(-1, grad.shape[-1])
    return total(func(of_flat[a:b], flat[a:b], rows, padding, by_count) for a, b in bounds)


def recurrent(
    func: Any,
    divide: Divide,
    x: Tensor,
    w1: Tensor,
    w2: Tensor,
    w3: Tensor,
    w4: Tensor,
    hx: Tensor,
    cx: Tensor,
    output: Tensor,
    hy: Tensor,
    cy: Tensor,
    *more: Any,
) -> tuple[Tensor, ...] | None:
    """oneDNN's layers; a workspace is of all samples, so each part has its forward again."""
    *grads, reverse, mode, hidden, layers, biases, train, both, sizes, first, _ = more
    bounds = divide(x.shape[1], x.shape[0] * x.shape[1])
    if len(bounds) < 2 or sizes:  # samples of several lengths, packed
        return None
    weights = (w1, w2, w3, w4)
    parts = []
    for a, b in bounds:
        v, h, c = x[:, a:b].contiguous(), hx[a:b].contiguous(), cx[a:b].contiguous()
        how = (reverse, sizes, mode, hidden, layers, biases, both, first, train)
        with torch.enable_grad():  # it has a workspace only where a backward may come
            y, hy_, cy_, workspace = torch.ops.aten.mkldnn_rnn_layer(v, *weights, h, c, *how)
        g = [_of(grad, a, b) for grad in grads]
        how = (reverse, mode, hidden, layers, biases, train, both, sizes, first)
        parts.append(func(v, *weights, h, c, y, hy_, cy_, *g, *how, workspace))
    of_x, *of_weights, of_hx, of_cx = zip(*parts, strict=True)
    states = (torch.cat(of_hx), torch.cat(of_cx))
    return torch.cat(of_x, dim=1), *(total(part) for part in of_weights), *states


def _of(grad: Tensor | None, start: int, stop: int) -> Tensor | None:
    """The samples of a gradient of an output (dim 1) or of a state (dim 0)."""
    if grad is None:
        return None
    return grad.narrow(1 if grad.dim() == 3 else 0, start, stop - start).contiguous()


def batch_norm(
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


def batch_norm_backward(
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
    return tuple(value if asked else None for value, asked in zip(found, wanted, strict=True))


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
