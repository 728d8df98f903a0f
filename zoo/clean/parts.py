"""Parts that several architectures are built from: attention, MLPs, and blocks of both."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.native.collectives import Gather

_LONGEST_HEAD = 64  # chosen: customary
_BASE = 10_000.0  # of rotary embeddings, as published


def head_of(width: int) -> int:
    """Channels of a head: at least four heads."""
    return min(_LONGEST_HEAD, width // 4)


class Attention(nn.Module):
    """Queries of its own positions against keys of all; `places` says which positions these are.

    Where `gathers`, every rank has a part of the sequence, and takes the other ranks' keys.
    """

    def __init__(
        self, width: int, *, groups: int = 1, causal: bool, rotary: bool = False, bias: bool = True
    ) -> None:
        super().__init__()
        self.head, self.groups = head_of(width), groups
        self.wq = nn.Linear(width, width, bias=bias)
        self.wk = nn.Linear(width, width // groups, bias=bias)
        self.wv = nn.Linear(width, width // groups, bias=bias)
        self.wo = nn.Linear(width, width, bias=bias)
        self.causal, self.rotary = causal, rotary
        self.gathers = False

    def forward(
        self, x: Tensor, places: Tensor, memory: Tensor | None = None, bias: Tensor | None = None
    ) -> Tensor:
        source = x if memory is None else memory
        query, key, value = (
            projected.unflatten(-1, (-1, self.head))
            for projected in (self.wq(x), self.wk(source), self.wv(source))
        )
        if self.rotary:
            query, key = rotated(query, places), rotated(key, places)
        if self.gathers:
            key, value = (cast(Tensor, Gather.apply(each, 1)) for each in (key, value))
        query, key, value = (each.transpose(1, 2) for each in (query, key, value))
        key, value = (each.repeat_interleave(self.groups, 1) for each in (key, value))
        if self.causal:
            everywhere = torch.arange(key.shape[2], device=x.device)
            bias = _open(places[0][:, None] >= everywhere, query.dtype, bias)
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=bias)
        return cast(Tensor, self.wo(mixed.transpose(1, 2).flatten(2)))


def _open(seen: Tensor, dtype: torch.dtype, bias: Tensor | None) -> Tensor:
    """A mask of what is seen, in the form that attention adds to a bias."""
    return seen if bias is None else bias.to(dtype).masked_fill(~seen, -torch.inf)


def rotated(x: Tensor, places: Tensor) -> Tensor:
    """Rotary embedding of (batch, position, head, channel)."""
    half = x.shape[-1] // 2
    speeds = _BASE ** -(torch.arange(half, device=x.device) / half)
    angles = (places[..., None] * speeds).unsqueeze(2)
    cosine, sine = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    first, second = x.chunk(2, -1)
    return torch.cat((first * cosine - second * sine, first * sine + second * cosine), -1)


class Mlp(nn.Module):
    def __init__(self, width: int, *, hidden: int | None = None, bias: bool = True) -> None:
        super().__init__()
        hidden = hidden or 4 * width
        self.up = nn.Linear(width, hidden, bias=bias)
        self.down = nn.Linear(hidden, width, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.down(F.gelu(self.up(x))))


class GatedMlp(nn.Module):
    """SwiGLU."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, 2 * width, bias=False)
        self.up = nn.Linear(width, 2 * width, bias=False)
        self.down = nn.Linear(2 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.down(F.silu(self.gate(x)) * self.up(x)))


class Block(nn.Module):
    """Norms before attention and MLP, as GPT-2 and its successors have them, or after."""

    def __init__(
        self, attention: Attention, mlp: nn.Module, norm: type[nn.Module], *, post: bool = False
    ) -> None:
        super().__init__()
        width = attention.wo.out_features
        self.norm1, self.norm2 = norm(width), norm(width)
        self.attention, self.mlp = attention, mlp
        self.post = post

    def forward(self, x: Tensor, places: Tensor) -> Tensor:
        if self.post:
            x = self.norm1(x + self.attention(x, places))
            return cast(Tensor, self.norm2(x + self.mlp(x)))
        x = x + self.attention(self.norm1(x), places)
        return x + cast(Tensor, self.mlp(self.norm2(x)))
