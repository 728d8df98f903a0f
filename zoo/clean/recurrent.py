"""Models that go along a sequence: LSTM, GRU, a Mamba-like scan, and convolutions of a sound."""

from __future__ import annotations

from functools import partial
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.clean.architecture import CLASSES, VOCAB, Architecture, Batch, cross_entropy, tokens
from zoo.clean.case import Case

_STATES = 4  # of each channel of a scan


class Recurrent(nn.Module):
    def __init__(self, case: Case, *, kind: type[nn.LSTM] | type[nn.GRU]) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCAB, case.width)
        self.core = kind(case.width, case.width, num_layers=case.depth, batch_first=True)
        self.head = nn.Linear(case.width, VOCAB)

    def forward(self, token_ids: Tensor, places: Tensor) -> Tensor:
        x, _ = self.core(self.tokens(token_ids))
        return cast(Tensor, self.head(x))


class Scan(nn.Module):
    """A linear recurrence whose decay, input and output depend on the token."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(width)
        self.inside, self.outside = nn.Linear(width, 2 * width), nn.Linear(width, width)
        self.step, self.states = nn.Linear(width, width), nn.Linear(width, 2 * _STATES)
        self.decay = nn.Parameter(torch.arange(1.0, _STATES + 1).log().expand(width, -1).clone())

    def forward(self, x: Tensor) -> Tensor:
        value, gate = self.inside(self.norm(x)).chunk(2, -1)
        step = F.softplus(self.step(value))[..., None]
        given, taken = self.states(value).unsqueeze(-2).chunk(2, -1)
        kept, added = (-step * self.decay.exp()).exp(), step * given * value[..., None]
        state, found = torch.zeros_like(added[:, 0]), []
        for place in range(x.shape[1]):
            state = kept[:, place] * state + added[:, place]
            found.append((state * taken[:, place]).sum(-1))
        return x + cast(Tensor, self.outside(torch.stack(found, 1) * F.silu(gate)))


class Mamba(nn.Module):
    def __init__(self, case: Case) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCAB, case.width)
        self.blocks = nn.ModuleList(Scan(case.width) for _ in range(case.depth))
        self.norm = nn.RMSNorm(case.width)
        self.head = nn.Linear(case.width, VOCAB, bias=False)

    def forward(self, token_ids: Tensor, places: Tensor) -> Tensor:
        x = self.tokens(token_ids)
        for block in self.blocks:
            x = block(x)
        return cast(Tensor, self.head(self.norm(x)))


class Sound(nn.Module):
    """Dilated convolutions along a wave."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.stem = nn.Conv1d(1, case.width, 5, padding=2)
        self.blocks = nn.ModuleList(
            nn.Conv1d(case.width, case.width, 3, padding=2**number, dilation=2**number)
            for number in range(case.depth)
        )
        self.norms = nn.ModuleList(nn.GroupNorm(4, case.width) for _ in range(case.depth))
        self.head = nn.Linear(case.width, CLASSES)

    def forward(self, wave: Tensor) -> Tensor:
        x = self.stem(wave)
        for block, norm in zip(self.blocks, self.norms, strict=True):
            x = x + F.gelu(block(norm(x)))
        return cast(Tensor, self.head(x.mean(-1)))


def waves(case: Case) -> Batch:
    target = torch.randint(CLASSES, (case.batch,))
    return Batch((torch.randn(case.batch, 1, case.positions),), target)


_language = partial(Architecture, batch=tokens, loss=cross_entropy, longest=64)

RECURRENT = (
    _language(name="lstm", build=partial(Recurrent, kind=nn.LSTM)),
    _language(name="gru", build=partial(Recurrent, kind=nn.GRU)),
    _language(name="mamba", build=Mamba),
    Architecture(name="sound", build=Sound, batch=waves, loss=cross_entropy, longest=8192),
)
