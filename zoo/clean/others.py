"""Plain MLPs and norms, graphs, tables of embeddings, and a contrastive pair of towers."""

from __future__ import annotations

from functools import partial
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.clean.architecture import (
    CLASSES,
    VOCAB,
    WHOLE_BATCH,
    Architecture,
    Batch,
    at_least_fp32,
    cross_entropy,
    tokens,
    vectors,
)
from zoo.clean.case import Case
from zoo.clean.parts import Mlp
from zoo.native.collectives import Gather

_DENSE, _TABLES = 13, 4  # of DLRM: as in the Criteo data, and fewer than there
_EDGES = 4  # of a node, on average
_TEMPERATURE = 0.07  # of CLIP, as published


class LayerNormModel(nn.Module):
    """A norm of whatever comes before it: the gradient of its weight is a sum over all rows."""

    def __init__(self, case: Case, first: nn.Module, outputs: int) -> None:
        super().__init__()
        self.first = first
        self.n = nn.LayerNorm(case.width)
        self.head = nn.Linear(case.width, outputs)

    def forward(self, x: Tensor, places: Tensor | None = None) -> Tensor:
        return cast(Tensor, self.head(self.n(self.first(x))))


class PlainMlp(nn.Module):
    def __init__(self, case: Case) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(case.width, case.width) for _ in range(case.depth))
        self.head = nn.Linear(case.width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = F.gelu(block(x))
        return cast(Tensor, self.head(x))


class Bags(nn.Module):
    """The mean embedding of a bag of words."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(VOCAB, case.width, mode="mean")
        self.blocks = nn.ModuleList(nn.Linear(case.width, case.width) for _ in range(case.depth))
        self.head = nn.Linear(case.width, CLASSES)

    def forward(self, token_ids: Tensor) -> Tensor:
        x = self.bag(token_ids)
        for block in self.blocks:
            x = F.relu(block(x))
        return cast(Tensor, self.head(x))


def bags(case: Case) -> Batch:
    drawn = torch.randint(VOCAB, (case.batch, case.positions))
    return Batch((drawn,), torch.randint(CLASSES, (case.batch,)))


class Dlrm(nn.Module):
    """Dense features and embedded ones, every two of them multiplied."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.bottom = nn.Linear(_DENSE, case.width)
        self.tables = nn.ModuleList(nn.Embedding(VOCAB, case.width) for _ in range(_TABLES))
        self.blocks = nn.ModuleList(Mlp((_TABLES + 1) ** 2) for _ in range(case.depth))
        self.top = nn.Linear((_TABLES + 1) ** 2, 1)

    def forward(self, dense: Tensor, ids: Tensor) -> Tensor:
        rows = [F.relu(self.bottom(dense))]
        rows += [table(ids[..., number]) for number, table in enumerate(self.tables)]
        features = torch.stack(rows, -2)
        x = (features @ features.transpose(-1, -2) / features.shape[-1]).flatten(-2)
        for block in self.blocks:
            x = x + block(x)
        return cast(Tensor, self.top(x).squeeze(-1))


def clicks(case: Case) -> Batch:
    shape = (case.batch, case.positions)
    ids = torch.randint(VOCAB, (*shape, _TABLES))
    return Batch((torch.randn(*shape, _DENSE), ids), torch.rand(shape).round())


def log_loss(output: Tensor, target: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(at_least_fp32(output), at_least_fp32(target))


class GraphNetwork(nn.Module):
    """Messages along edges, added up at their targets."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.messages, self.updates = (
            nn.ModuleList(nn.Linear(2 * case.width, case.width) for _ in range(case.depth))
            for _ in range(2)
        )
        self.norm = nn.LayerNorm(case.width)
        self.head = nn.Linear(case.width, CLASSES)

    def forward(self, nodes: Tensor, edges: Tensor) -> Tensor:
        shape, x = nodes.shape, nodes.flatten(0, 1)
        first = torch.arange(shape[0], device=x.device)[:, None, None] * shape[1]
        source, target = (edges + first).flatten(0, 1).unbind(-1)
        for message, update in zip(self.messages, self.updates, strict=True):
            sent = F.relu(message(torch.cat((x[source], x[target]), -1)))
            arrived = torch.zeros_like(x, dtype=sent.dtype).index_add(0, target, sent)
            x = x + F.relu(update(torch.cat((x, arrived.to(x.dtype)), -1)))
        return cast(Tensor, self.head(self.norm(x)).view(*shape[:2], -1))


def graphs(case: Case) -> Batch:
    """As many edges in each, between any of its nodes."""
    found = vectors(case)
    edges = torch.randint(case.positions, (case.batch, _EDGES * case.positions, 2))
    return Batch((*found.inputs, edges), found.target)


class TwoTowers(nn.Module):
    """Vectors and words of the same things, into one space."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.image = nn.ModuleList(nn.Linear(case.width, case.width) for _ in range(case.depth))
        self.words = nn.EmbeddingBag(VOCAB, case.width, mode="mean")
        self.text = nn.ModuleList(nn.Linear(case.width, case.width) for _ in range(case.depth))
        self.temperature = nn.Parameter(torch.tensor([_TEMPERATURE]).log())

    def forward(self, seen: Tensor, said: Tensor) -> tuple[Tensor, Tensor]:
        image, text = seen.mean(1), self.words(said)
        for one, other in zip(self.image, self.text, strict=True):
            image, text = image + F.gelu(one(image)), text + F.gelu(other(text))
        scale = (-self.temperature).exp()
        return F.normalize(image, dim=-1) * scale, F.normalize(text, dim=-1)


def pairs(case: Case) -> Batch:
    seen = torch.randn(case.batch, case.positions, case.width)
    said = torch.randint(VOCAB, (case.batch, case.positions))
    return Batch((seen, said), torch.arange(case.batch))


def contrastive(output: tuple[Tensor, Tensor], target: Tensor) -> Tensor:
    """Of the whole batch on every rank, by features that are gathered with their gradient."""
    image, text = (cast(Tensor, Gather.apply(at_least_fp32(each), 0)) for each in output)
    right = torch.arange(len(image), device=image.device)
    scores = image @ text.T
    return (F.cross_entropy(scores, right) + F.cross_entropy(scores.T, right)) / 2


_plain = partial(Architecture, batch=vectors, loss=cross_entropy, longest=8192)

OTHERS = (
    _plain(
        name="layernorm",
        build=lambda case: LayerNormModel(case, nn.Linear(case.width, case.width), CLASSES),
    ),
    Architecture(
        name="layernorm-embedding",
        build=lambda case: LayerNormModel(case, nn.Embedding(VOCAB, case.width), VOCAB),
        batch=tokens,
        loss=cross_entropy,
        longest=8192,
    ),
    _plain(name="mlp", build=PlainMlp),
    Architecture(name="bags", build=Bags, batch=bags, loss=cross_entropy),
    Architecture(name="dlrm", build=Dlrm, batch=clicks, loss=log_loss),
    Architecture(name="graphs", build=GraphNetwork, batch=graphs, loss=cross_entropy),
    Architecture(name="clip", build=TwoTowers, batch=pairs, loss=contrastive, layouts=WHOLE_BATCH),
)
