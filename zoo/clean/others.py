"""Small and plain ones: a layer norm between two linears, and an MLP."""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn

from zoo.clean.architecture import CLASSES, VOCAB, Architecture, cross_entropy, tokens, vectors
from zoo.clean.case import Case


class LayerNormModel(nn.Module):
    """A norm of whatever comes before it: the gradient of its weight is a sum over all rows."""

    def __init__(self, case: Case, first: nn.Module, outputs: int) -> None:
        super().__init__()
        self.first = first
        self.n = nn.LayerNorm(case.width)
        self.head = nn.Linear(case.width, outputs)

    def forward(self, x: Tensor, places: Tensor | None = None) -> Tensor:
        return cast(Tensor, self.head(self.n(self.first(x))))


OTHERS = (
    Architecture(
        name="layernorm",
        build=lambda case: LayerNormModel(case, nn.Linear(case.width, case.width), CLASSES),
        batch=vectors,
        loss=cross_entropy,
        longest=65_536,
    ),
    Architecture(
        name="layernorm-embedding",
        build=lambda case: LayerNormModel(case, nn.Embedding(VOCAB, case.width), VOCAB),
        batch=tokens,
        loss=cross_entropy,
        longest=65_536,
    ),
)
