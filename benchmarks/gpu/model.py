"""The workload: a plain GPT of nn.Modules and its training step, of the size that people train.

24 layers, hidden 2,048, 16 heads, a gated MLP of 4 x, vocabulary 50,304, tied: 1.7 B parameters;
8,192 tokens a step in bf16, fused AdamW.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import AdamW


@dataclass(frozen=True, slots=True, kw_only=True)
class GptConfig:
    layers: int
    hidden: int = 2048
    heads: int = 16
    widening: int = 4  # of the MLP
    vocabulary: int = 50_304
    sequences: int = 4
    tokens: int = 2048  # of a sequence


LARGE = GptConfig(layers=24)
SMALL = replace(LARGE, layers=8)
TINY = GptConfig(layers=2, hidden=64, heads=2, vocabulary=128, sequences=2, tokens=16)
NAMED = {"large": LARGE, "small": SMALL, "tiny": TINY}


class Attention(nn.Module):
    def __init__(self, config: GptConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.qkv = nn.Linear(config.hidden, 3 * config.hidden, bias=False)
        self.out = nn.Linear(config.hidden, config.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, hidden = x.shape
        parts = self.qkv(x).view(batch, length, 3, self.heads, hidden // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        found: Tensor = self.out(mixed.transpose(1, 2).reshape(batch, length, hidden))
        return found


class Mlp(nn.Module):
    def __init__(self, config: GptConfig) -> None:
        super().__init__()
        width = config.widening * config.hidden
        self.gate = nn.Linear(config.hidden, width, bias=False)
        self.up = nn.Linear(config.hidden, width, bias=False)
        self.down = nn.Linear(width, config.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.down(F.silu(self.gate(x)) * self.up(x))
        return found


class Layer(nn.Module):
    def __init__(self, config: GptConfig) -> None:
        super().__init__()
        self.norm_attention = nn.LayerNorm(config.hidden)
        self.attention = Attention(config)
        self.norm_mlp = nn.LayerNorm(config.hidden)
        self.mlp = Mlp(config)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm_attention(x))
        found: Tensor = x + self.mlp(self.norm_mlp(x))
        return found


class Gpt(nn.Module):
    def __init__(self, config: GptConfig) -> None:
        super().__init__()
        self.embed = nn.Embedding(config.vocabulary, config.hidden)
        self.position = nn.Embedding(config.tokens, config.hidden)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.hidden)
        self.head = nn.Linear(config.hidden, config.vocabulary, bias=False)
        self.head.weight = self.embed.weight
        for table in (self.embed, self.position):  # as GPTs do: else the loss is 0 from the start
            nn.init.normal_(table.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.embed(tokens) + self.position(places)
        for layer in self.layers:
            x = layer(x)
        found: Tensor = self.head(self.norm(x))
        return found


class Workload(NamedTuple):
    """A model, its optimizer, and one training step of it."""

    model: Gpt
    optimizer: AdamW
    step: Callable[[], None]


def make_workload(
    config: GptConfig,
    device: str,
    convert: Callable[[nn.Module], None] = lambda model: None,
    after_step: Callable[[nn.Module], None] = lambda model: None,
) -> Workload:
    """`convert` changes the model before it has an optimizer."""
    torch.manual_seed(0)
    with torch.device(device):
        model = Gpt(config).to(torch.bfloat16)
        tokens = torch.randint(config.vocabulary, (config.sequences, config.tokens))
        convert(model)
    optimizer = AdamW(model.parameters(), lr=1e-4, fused=True)

    def step() -> None:
        logits = model(tokens)
        loss = F.cross_entropy(logits.flatten(0, 1), tokens.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        after_step(model)

    return Workload(model, optimizer, step)
