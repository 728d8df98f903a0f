"""The model of these benchmarks: a plain GPT in bfloat16 with fused AdamW, and one step of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How large the model and its batch are."""

    layers: int
    width: int = 2048
    heads: int = 16
    vocabulary: int = 50304
    samples: int = 4
    tokens: int = 2048  # of a sample


LARGE = Size(layers=24)  # 1.3 B parameters in the layers, 1.4 B with its embedding
SMALL = Size(layers=8)
TINY = Size(layers=2, width=64, heads=2, vocabulary=256, samples=2, tokens=32)


class Block(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.heads = size.heads
        self.norm_1 = nn.LayerNorm(size.width)
        self.qkv = nn.Linear(size.width, 3 * size.width)
        self.project = nn.Linear(size.width, size.width)
        self.norm_2 = nn.LayerNorm(size.width)
        self.up = nn.Linear(size.width, 4 * size.width)
        self.activation = nn.GELU(approximate="tanh")
        self.down = nn.Linear(4 * size.width, size.width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, width = x.shape
        mixed = self.qkv(self.norm_1(x)).view(batch, tokens, 3, self.heads, width // self.heads)
        query, key, value = mixed.permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.project(attended.transpose(1, 2).reshape(batch, tokens, width))
        return x + self.down(self.activation(self.up(self.norm_2(x))))


class GPT(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.embedding = nn.Embedding(size.vocabulary, size.width)
        self.positions = nn.Embedding(size.tokens, size.width)
        self.layers = nn.ModuleList(Block(size) for _ in range(size.layers))
        self.norm = nn.LayerNorm(size.width)
        self.head = nn.Linear(size.width, size.vocabulary, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.embedding(tokens) + self.positions(places)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def make(size: Size, device: str) -> tuple[nn.Module, torch.optim.Optimizer, Callable[[], Any]]:
    """The model, its optimizer, and a function that makes one step."""
    torch.manual_seed(0)
    with torch.device(device):
        model = GPT(size).to(torch.bfloat16)
        tokens = torch.randint(size.vocabulary, (size.samples, size.tokens + 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=device == "cuda")

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        logits = model(tokens[:, :-1])
        F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
        optimizer.step()

    return model, optimizer, step
