"""Language models: GPT-2, Llama, BERT, T5, and a mixture of experts."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.clean.architecture import (
    EVERY_SPLIT,
    VOCAB,
    Architecture,
    Batch,
    cross_entropy,
    places,
    tokens,
)
from zoo.clean.case import Case
from zoo.clean.parts import Attention, Block, GatedMlp, Mlp, head_of

_IGNORED = -100  # of torch's cross entropy
_EVERY = 4  # every fourth token is masked in BERT: as many in each part of a batch
_MASK = 0  # the token that stands for a masked one
_EXPERTS, _CHOSEN = 4, 2
_DISTANCES = 16  # of T5's position bias; further ones are alike


class LanguageModel(nn.Module):
    """Embeddings, blocks, a norm and a head."""

    def __init__(
        self, case: Case, block: Callable[[int], nn.Module], norm: type[nn.Module]
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCAB, case.width)
        if norm is nn.LayerNorm:  # Llama has rotary embeddings instead
            self.places = nn.Embedding(case.positions, case.width)
        self.blocks = nn.ModuleList(block(case.width) for _ in range(case.depth))
        self.norm = norm(case.width)
        self.head = nn.Linear(case.width, VOCAB, bias=False)

    def forward(self, token_ids: Tensor, places: Tensor) -> Tensor:
        x = self.tokens(token_ids)
        if hasattr(self, "places"):
            x = x + self.places(places)
        for block in self.blocks:
            x = block(x, places)
        return cast(Tensor, self.head(self.norm(x)))


def gpt2_block(width: int) -> Block:
    return Block(Attention(width, causal=True), Mlp(width), nn.LayerNorm)


def llama_block(width: int) -> Block:
    attention = Attention(width, groups=2, causal=True, rotary=True, bias=False)
    return Block(attention, GatedMlp(width), nn.RMSNorm)


def bert_block(width: int) -> Block:
    return Block(Attention(width, causal=False), Mlp(width), nn.LayerNorm, post=True)


def masked_tokens(case: Case) -> Batch:
    """Every fourth token is to be guessed."""
    drawn = torch.randint(1, VOCAB, (case.batch, case.positions))
    is_hidden = torch.arange(case.positions).expand_as(drawn) % _EVERY == 1
    target = drawn.masked_fill(~is_hidden, _IGNORED)
    return Batch((drawn.masked_fill(is_hidden, _MASK), places(case)), target)


class Experts(nn.Module):
    """Two of four experts a token: all of them on all tokens, weighted; most weights are zero."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.router = nn.Linear(width, _EXPERTS, bias=False)
        self.experts = nn.ModuleList(Mlp(width, hidden=2 * width) for _ in range(_EXPERTS))

    def forward(self, x: Tensor) -> Tensor:
        weights = self.router(x).softmax(-1)
        best = weights.detach().topk(_CHOSEN, -1).indices
        gates = weights * torch.zeros_like(weights).scatter(-1, best, 1.0)
        terms = [expert(x) * gates[..., i : i + 1] for i, expert in enumerate(self.experts)]
        return torch.stack(terms).sum(0)


def moe_block(width: int) -> Block:
    return Block(Attention(width, causal=True, bias=False), Experts(width), nn.RMSNorm)


class T5Block(nn.Module):
    """Attention to itself, in a decoder also to the encoder, and a ReLU MLP; nothing has a bias."""

    def __init__(self, width: int, *, decodes: bool) -> None:
        super().__init__()
        self.attention = Attention(width, causal=decodes, bias=False)
        self.cross = Attention(width, causal=False, bias=False) if decodes else None
        self.norm1, self.norm3 = nn.RMSNorm(width), nn.RMSNorm(width)
        # one that nobody uses would keep DDP from reducing
        self.norm2 = nn.RMSNorm(width) if decodes else None
        self.wi, self.wo = (
            nn.Linear(width, 4 * width, bias=False),
            nn.Linear(4 * width, width, bias=False),
        )

    def forward(
        self, x: Tensor, places: Tensor, bias: Tensor, memory: Tensor | None = None
    ) -> Tensor:
        x = x + self.attention(self.norm1(x), places, bias=bias)
        if self.cross is not None and self.norm2 is not None:
            x = x + self.cross(self.norm2(x), places, memory=memory)
        return x + cast(Tensor, self.wo(F.relu(self.wi(self.norm3(x)))))


class T5(nn.Module):
    def __init__(self, case: Case) -> None:
        super().__init__()
        heads = case.width // head_of(case.width)
        self.tokens = nn.Embedding(VOCAB, case.width)
        self.distances = nn.ModuleList(nn.Embedding(2 * _DISTANCES, heads) for _ in range(2))
        self.encoder, self.decoder = (
            nn.ModuleList(T5Block(case.width, decodes=decodes) for _ in range(case.depth))
            for decodes in (False, True)
        )
        self.norm1, self.norm2 = nn.RMSNorm(case.width), nn.RMSNorm(case.width)
        self.head = nn.Linear(case.width, VOCAB, bias=False)

    def forward(self, source: Tensor, shifted: Tensor, places: Tensor) -> Tensor:
        distance = (places[0][:, None] - places[0]).clamp(-_DISTANCES, _DISTANCES - 1) + _DISTANCES
        biases = [each(distance).permute(2, 0, 1)[None] for each in self.distances]
        memory = self.tokens(source)
        for block in self.encoder:
            memory = block(memory, places, biases[0])
        memory, x = self.norm1(memory), self.tokens(shifted)
        for block in self.decoder:
            x = block(x, places, biases[1], memory)
        return cast(Tensor, self.head(self.norm2(x)))


def pairs_of_texts(case: Case) -> Batch:
    """A text, and another to make of it."""
    source = torch.randint(VOCAB, (case.batch, case.positions))
    made = torch.randint(VOCAB, (case.batch, case.positions + 1))
    return Batch((source, made[:, :-1].contiguous(), places(case)), made[:, 1:].contiguous())


_language = partial(Architecture, batch=tokens, loss=cross_entropy)

LANGUAGE = (
    _language(
        name="gpt2",
        build=lambda case: LanguageModel(case, gpt2_block, nn.LayerNorm),
        layouts=(*EVERY_SPLIT, "tp2", "cp2"),
    ),
    _language(
        name="llama",
        build=lambda case: LanguageModel(case, llama_block, nn.RMSNorm),
        layouts=(*EVERY_SPLIT, "tp2", "cp2"),
    ),
    Architecture(
        name="bert",
        build=lambda case: LanguageModel(case, bert_block, nn.LayerNorm),
        batch=masked_tokens,
        loss=cross_entropy,
        layouts=(*EVERY_SPLIT, "tp2"),
    ),
    Architecture(name="t5", build=T5, batch=pairs_of_texts, loss=cross_entropy),
    _language(
        name="moe",
        build=lambda case: LanguageModel(case, moe_block, nn.RMSNorm),
        layouts=(*EVERY_SPLIT, "cp2"),
    ),
)
