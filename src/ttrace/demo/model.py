"""A small Llama-style model in plain PyTorch.

Enters: a `ModelConfig` and a seed. Leaves: an `nn.Module` whose parameters depend on those two
alone, so that every rank can build the whole model and cut its own shard from it. Nothing here
knows of parallelism, except that attention counts the heads it is given instead of reading their
number from the config: under tensor parallelism a rank sees only its own.

Biases and norm weights start away from 0 and 1: a bias counted twice, or a norm weight that is
never applied, would otherwise leave no trace.
"""

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Sizes, chosen small: a step takes milliseconds, and every dim still divides by tp 2."""

    dim: int = 64
    hidden_dim: int = 128
    n_layers: int = 3
    n_heads: int = 4
    n_kv_heads: int = 2
    vocab_size: int = 256
    max_seq_len: int = 64
    rope_theta: float = 10_000.0  # Llama 1 and 2
    norm_eps: float = 1e-5  # Llama
    tied: bool = False

    def __post_init__(self) -> None:
        if self.dim % self.n_heads or (self.dim // self.n_heads) % 2:
            raise ValueError(f"dim {self.dim} must split into {self.n_heads} heads of even size")
        if self.n_heads % self.n_kv_heads:
            raise ValueError(f"{self.n_heads} heads cannot share {self.n_kv_heads} kv heads evenly")

    @property
    def head_dim(self) -> int:
        return self.dim // self.n_heads


def rope_table(config: ModelConfig) -> Tensor:
    """Cosines and sines of every position: (max_seq_len, 2, head_dim / 2), always float32."""
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
    positions = torch.arange(config.max_seq_len, dtype=torch.float32)
    angles = torch.outer(positions, config.rope_theta**-exponents)
    return torch.stack((angles.cos(), angles.sin()), dim=1)


def apply_rope(heads: Tensor, rope: Tensor) -> Tensor:
    """Rotates (batch, position, head, channel) by the first rows of `rope`, one per position."""
    cos, sin = rope[: heads.shape[1], None].unbind(dim=2)
    even, odd = heads.float().unflatten(-1, (-1, 2)).unbind(dim=-1)
    rotated = torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1)
    return rotated.flatten(-2).type_as(heads)


class RMSNorm(nn.Module):
    """x / rms(x) * weight; the division in float32 whatever the dtype of x."""

    def __init__(self, dim: int, *, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        return self.normalise(x) * self.weight

    def normalise(self, x: Tensor) -> Tensor:
        wide = x.float()
        return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)).type_as(x)


class Attention(nn.Module):
    """Causal grouped-query attention with rotary positions; `wo` alone has a bias."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        kv_dim = config.n_kv_heads * config.head_dim
        self.wq = nn.Linear(config.dim, config.dim, bias=False)
        self.wk = nn.Linear(config.dim, kv_dim, bias=False)
        self.wv = nn.Linear(config.dim, kv_dim, bias=False)
        self.wo = nn.Linear(config.dim, config.dim, bias=True)

    def forward(self, x: Tensor, rope: Tensor) -> Tensor:
        query, key = self.rotate(self.split(self.wq(x)), self.split(self.wk(x)), rope)
        value = self.split(self.wv(x))
        mixed = F.scaled_dot_product_attention(
            query.transpose(1, 2),
            key.transpose(1, 2),
            value.transpose(1, 2),
            is_causal=True,
            enable_gqa=True,
        )
        return cast(Tensor, self.wo(mixed.transpose(1, 2).flatten(2)))

    def split(self, projected: Tensor) -> Tensor:
        return projected.unflatten(-1, (-1, self.head_dim))

    def rotate(self, query: Tensor, key: Tensor, rope: Tensor) -> tuple[Tensor, Tensor]:
        return apply_rope(query, rope), apply_rope(key, rope)


class FeedForward(nn.Module):
    """The gated MLP: w2(silu(w1 x) * w3 x)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.w1 = nn.Linear(config.dim, config.hidden_dim, bias=False)
        self.w2 = nn.Linear(config.hidden_dim, config.dim, bias=False)
        self.w3 = nn.Linear(config.dim, config.hidden_dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.w2(F.silu(self.w1(x)) * self.w3(x)))


class TransformerBlock(nn.Module):
    """Attention, then the MLP, each behind a norm and beside a residual."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(config.dim, eps=config.norm_eps)
        self.attention = Attention(config)
        self.ffn_norm = RMSNorm(config.dim, eps=config.norm_eps)
        self.feed_forward = FeedForward(config)

    def forward(self, x: Tensor, rope: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), rope)
        return x + cast(Tensor, self.feed_forward(self.ffn_norm(x)))


class Transformer(nn.Module):
    """Token ids (batch, position) to logits (batch, position, vocab)."""

    rope: Tensor

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.tok_embeddings = nn.Embedding(config.vocab_size, config.dim)
        self.layers = nn.ModuleList(TransformerBlock(config) for _ in range(config.n_layers))
        self.norm = RMSNorm(config.dim, eps=config.norm_eps)
        self.output = nn.Linear(config.dim, config.vocab_size, bias=False)
        self.register_buffer("rope", rope_table(config), persistent=False)
        if config.tied:
            self.tie()

    def tie(self) -> None:
        """Makes the output use the embedding's weight; again after anything that replaces it."""
        self.output.weight = self.tok_embeddings.weight

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.tok_embeddings(tokens)
        for layer in self.layers:
            hidden = layer(hidden, self.rope)
        return cast(Tensor, self.output(self.norm(hidden)))


def build_model(
    config: ModelConfig, *, seed: int, dtype: torch.dtype = torch.float32
) -> Transformer:
    """The same parameters on every rank: drawn in float32 by one seeded generator, then rounded."""
    model = Transformer(config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if name.endswith("norm.weight"):
                parameter.copy_(1 + 0.1 * noise)  # 0.1: far above rounding, chosen arbitrarily
            elif name.endswith("bias"):
                parameter.copy_(0.1 * noise)
            else:
                parameter.copy_(noise * parameter.shape[-1] ** -0.5)
    model.to(dtype)
    model.rope = rope_table(config)  # `to` rounded the buffer as well
    return model
