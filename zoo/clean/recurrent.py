"""Models that go through a sequence step by step: LSTM, GRU, and a Mamba-like scan."""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn

from zoo.clean.architecture import VOCAB, Architecture, cross_entropy, tokens
from zoo.clean.case import Case


class Recurrent(nn.Module):
    def __init__(self, case: Case, kind: type[nn.LSTM] | type[nn.GRU]) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCAB, case.width)
        self.core = kind(case.width, case.width, num_layers=case.depth, batch_first=True)
        self.head = nn.Linear(case.width, VOCAB)

    def forward(self, token_ids: Tensor, places: Tensor) -> Tensor:
        x, _ = self.core(self.tokens(token_ids))
        return cast(Tensor, self.head(x))


RECURRENT = (
    Architecture(
        name="lstm",
        build=lambda case: Recurrent(case, nn.LSTM),
        batch=tokens,
        loss=cross_entropy,
    ),
    Architecture(
        name="gru",
        build=lambda case: Recurrent(case, nn.GRU),
        batch=tokens,
        loss=cross_entropy,
    ),
)
