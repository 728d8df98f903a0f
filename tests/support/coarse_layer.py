"""A small Llama that is trained in float8, in which one part has scales far too coarse."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import ttrace
from ttrace.demo.model import ModelConfig, build_model
from zoo.lowprecision.linear import QuantisedLinear
from zoo.lowprecision.recipes import quantise_linears
from zoo.lowprecision.schemes import Operand, Quantised, Rowwise

SIZES = ModelConfig(dim=32, hidden_dim=64, n_layers=3, n_heads=2, n_kv_heads=2, vocab_size=64)
_TOO_COARSE = 2.0**15  # of 448, which leaves seven codes of either sign


@dataclass(frozen=True, slots=True, kw_only=True)
class Coarse:
    """As Rowwise, but of the range of e4m3 only the smallest numbers are used."""

    def quantise(self, x: Tensor, operand: Operand, split: int | None) -> Quantised:
        found = Rowwise().quantise(x, operand, split)
        scales = found.scales * _TOO_COARSE
        return replace(found, codes=(x.float() / scales).to(torch.float8_e4m3fn), scales=scales)


def train(spoilt: str | None, quantises: bool = True) -> None:
    """One step; `spoilt` is the part of the model with coarse scales."""
    torch.manual_seed(0)
    model = build_model(SIZES, seed=1, dtype=torch.float32)
    quantise_linears(model, lambda _: Rowwise() if quantises else None)
    if spoilt is not None:
        for module in model.get_submodule(spoilt).modules():
            if isinstance(module, QuantisedLinear):
                module.schemes = dict.fromkeys(module.schemes, Coarse())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    tokens = torch.randint(SIZES.vocab_size, (4, 17))
    tracer = ttrace.attach(model, optimizer)
    with tracer.step():
        logits = model(tokens[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
