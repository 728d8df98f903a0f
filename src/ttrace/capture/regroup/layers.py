"""Backward passes of layers in parts of their samples: parameter gradients are sums over them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ttrace.capture.regroup.parts import Divide, joined, total

Gradients = tuple[Tensor | None, ...]


def layer_norm(
    func: Any,
    divide: Divide,
    grad: Tensor,
    x: Tensor,
    shape: Sequence[int],
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    wanted: Sequence[bool],
) -> Gradients | None:
    g, v, m, r = _by_rows(x, shape, (grad, x), (mean, rstd))
    bounds = divide(v.shape[0])
    if len(bounds) < 2 or not any(wanted[1:]):
        return None
    parts = [func(g[a:b], v[a:b], shape, m[a:b], r[a:b], weight, bias, wanted) for a, b in bounds]
    return joined(parts, x.shape, wanted)


def rms_norm(
    func: Any,
    divide: Divide,
    grad: Tensor,
    x: Tensor,
    shape: Sequence[int],
    rstd: Tensor,
    weight: Tensor | None,
    wanted: Sequence[bool],
) -> Gradients | None:
    g, v, r = _by_rows(x, shape, (grad, x), (rstd,))
    bounds = divide(v.shape[0])
    if len(bounds) < 2 or not any(wanted[1:]):
        return None
    parts = [func(g[a:b], v[a:b], shape, r[a:b], weight, wanted) for a, b in bounds]
    return joined(parts, x.shape, wanted)


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
