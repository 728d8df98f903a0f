"""Rounding noise on purpose: every value moved by at most one machine epsilon of its own dtype.

A run with noise at every module boundary shows how far rounding alone moves each tensor (Monte
Carlo arithmetic at module granularity). The noise comes from its own generator, keyed by seed and
tensor id: the user's random numbers are untouched and replicas on several ranks get the same noise.
Values stay in their range: signs, zeros, infinities and whole numbers are kept, and what is at most
one in magnitude stays so.

Kernels of another device compute the same functions by other approximations, each right to a unit
in the last place, but not to either side by chance: all elements may come out a little larger.
Noise between such kernels has a part that all elements of a tensor share.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import xxhash

from ttrace.adapters.base import Adapter
from ttrace.capture.guard import Guard, entry
from ttrace.trace.dtypes import eps_of

_NOISY = frozenset({torch.float64, torch.float32, torch.bfloat16, torch.float16})
_ACCUMULATED_IN_OWN_DTYPE = frozenset({torch.float64, torch.float32})

# Chosen: a tensor in which none of these flips has a probability of exp(-16), and that of a
# candidate with a few is within a factor of the noise.
FLIPS = 16
_LONGEST_REACH = 0.5  # steps: to the border from the middle of a place


class Noise:
    """Moves by one unit in the last place at most: x + eps |x| u, u uniform in [-1, 1].

    Of other kernels: x + eps |x| (u + v + w sign x), v and w drawn so too, once for a tensor.
    """

    def __init__(
        self,
        seed: int,
        adapter: Adapter,
        *,
        other_kernels: bool = False,
        guard: Guard | None = None,
    ) -> None:
        self.seed = seed
        self._guard = guard or Guard()
        self._adapter = adapter
        self._other_kernels = other_kernels

    def on(self, tensor: torch.Tensor, key: str) -> torch.Tensor:
        """Noisy values of the same kind of tensor; autograd passes the gradient on unchanged."""
        if tensor.dtype not in _NOISY or tensor.numel() == 0:
            return tensor
        shared = self._other_kernels
        shift = partial(self._shift, key=key, shared=shared)
        return _Noisy.apply(tensor, shift, self._guard)

    def on_weight(self, tensor: torch.Tensor, key: str) -> torch.Tensor:
        """Noisy values of a weight, for one operator that multiplies by it.

        A matmul in another order rounds every product, not only its inputs: without noise on the
        weights, gradients of short fp32 sums reach 1.3 times the noise of the reference (measured).
        Products of bf16 and fp16 are summed in fp32, far below their own rounding: those need none.
        """
        return self._shift(tensor, key) if tensor.dtype in _ACCUMULATED_IN_OWN_DTYPE else tensor

    def on_grid(
        self, values: torch.Tensor, key: str, step: Callable[[torch.Tensor], torch.Tensor]
    ) -> torch.Tensor:
        """Noise on plain values that come to lie on a grid next, whose steps there `step` tells.

        So much that about FLIPS of them come to lie on another place, or a quarter of a few: what
        its own rounding does to a value flips far fewer where the grid is much coarser, but each of
        them by a whole step. None gets larger than the largest: that one fits the grid.
        """
        value = values.to(torch.float64 if values.dtype == torch.float64 else torch.float32)
        finite = value.isfinite()
        if values.numel() == 0 or not bool(finite.any()) or bool((value == value.round()).all()):
            return values
        generator = self.generator(key, value.device)
        uniform = torch.rand(
            value.shape, generator=generator, device=value.device, dtype=value.dtype
        )
        # u in [-r, r] steps crosses the border between two places with a probability of r / 2
        reach = min(_LONGEST_REACH, 2 * FLIPS / values.numel())
        noise = (2 * uniform - 1) * reach * step(value)
        peak = value.masked_fill(~finite, 0.0).abs().max()
        moved = torch.where(finite & (value != 0), (value + noise).clamp(-peak, peak), value)
        return moved.to(values.dtype)

    def reordered(self, drawn: torch.Tensor, key: str) -> torch.Tensor:
        """Numbers that somebody drew, in another order."""
        order = torch.randperm(
            drawn.numel(), generator=self.generator(key, drawn.device), device=drawn.device
        )
        return drawn.flatten()[order].view(drawn.shape)

    def generator(self, key: str, device: torch.device) -> torch.Generator:
        """One of its own, equal on all ranks."""
        made = torch.Generator(device=device)
        return made.manual_seed(xxhash.xxh3_64_intdigest(key.encode(), seed=self.seed) >> 1)

    def _shift(self, tensor: torch.Tensor, key: str, *, shared: bool = False) -> torch.Tensor:
        local, _ = self._adapter.to_local(tensor)
        return self._adapter.wrap_like(self._values(local, key, shared=shared), like=tensor)

    def _values(self, local: torch.Tensor, key: str, *, shared: bool) -> torch.Tensor:
        generator = self.generator(key, local.device)
        wide = torch.float64 if local.dtype == torch.float64 else torch.float32
        uniform = torch.rand(local.shape, generator=generator, device=local.device, dtype=wide)
        value = local.to(wide)
        eps = eps_of(local.dtype)
        if _are_whole(value, eps):
            return local
        # Below the normal numbers, which float16 reaches, a unit in the last place is constant.
        unit = value.abs().clamp_(min=torch.finfo(local.dtype).smallest_normal).mul_(eps)
        unit.masked_fill_((value == 0) | ~value.isfinite(), 0.0)
        noise = 2 * uniform - 1
        if shared:
            draws = torch.rand(2, generator=generator, device=local.device, dtype=wide)
            noise += (2 * draws[0] - 1) + (2 * draws[1] - 1) * value.sign()
        moved = (value + unit * noise).to(local.dtype)
        # Probabilities, cosines and saturated functions end at one.
        return torch.where(value.abs() <= 1, moved.clamp(-1, 1), moved)


def _are_whole(value: torch.Tensor, eps: float) -> bool:
    """Whether they are numbers that somebody counted, or a mask: nothing there was rounded.

    From 1 / eps on every number of the dtype is whole.
    """
    return bool(((value == value.trunc()) & (value.abs() < 1 / eps) | value.isinf()).all())


def _unchanged(_: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None, None]:
    return grads[0], None, None


class _Noisy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        tensor: torch.Tensor,
        shift: Callable[[torch.Tensor], torch.Tensor],
        guard: Guard,
    ) -> torch.Tensor:
        ctx.guard = guard
        return shift(tensor)

    @staticmethod
    @entry("the gradient of a noisy tensor", _unchanged)
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return _unchanged(ctx, *grads)
