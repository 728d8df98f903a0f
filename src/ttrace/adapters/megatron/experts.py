"""Which token is which row of an expert's input?

A dispatcher sends each token's hidden state to the ranks of its experts; nothing travels with it
that tells whose token it is. While a step is traced, the numbers of the tokens are dispatched once
more, by a copy of the same dispatcher, so that every row knows its token: (source rank, place).
A row then has a place in a dense tensor of all tokens, the same in every layout.
"""

from __future__ import annotations

import copy
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from megatron.core.transformer.moe.moe_layer import MoELayer

from ttrace.adapters.megatron.layouts import Seat
from ttrace.adapters.patching import patched


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenSource:
    """A rank that sends tokens: its number and its coordinates."""

    rank: int
    tp: Seat
    cp: Seat


@dataclass(frozen=True, slots=True, kw_only=True)
class Dispatched:
    """The rows that a rank's experts got in one call of their layer."""

    rows: torch.Tensor  # of each row: source rank, place among the tokens of that rank
    counts: tuple[int, ...]  # rows of each local expert; they stand in this order
    shape: tuple[int, int]  # sequence and batch of a source's tokens
    sources: tuple[TokenSource, ...]

    def of_expert(self, index: int) -> torch.Tensor:
        return self.rows.split(list(self.counts))[index]


class Dispatches:
    """The latest dispatch of every layer, kept by watching `MoELayer.preprocess`."""

    def __init__(self, tp: Seat, cp: Seat) -> None:
        self._coordinates = (tp, cp)
        self._latest: dict[int, Dispatched] = {}
        self._sources: dict[int, tuple[TokenSource, ...]] = {}

    def latest(self, layer: MoELayer) -> Dispatched | None:
        return self._latest.get(id(layer))

    def tracking(self) -> AbstractContextManager[None]:
        def preprocess(
            original: Any,
            layer: MoELayer,
            hidden_states: torch.Tensor,
            probs: torch.Tensor,
            routing_map: Any,
        ) -> Any:
            self._follow(layer, hidden_states, probs, routing_map)
            return original(layer, hidden_states, probs, routing_map)

        return patched(MoELayer, "preprocess", preprocess)

    @torch.no_grad()
    def _follow(
        self, layer: MoELayer, hidden: torch.Tensor, probs: torch.Tensor, routing_map: Any
    ) -> None:
        length, batch = hidden.shape[:2]
        numbers = torch.arange(length * batch, device=hidden.device, dtype=torch.float32)
        rank = torch.full_like(numbers, dist.get_rank())
        tokens = torch.stack([rank, numbers], dim=-1).view(length, batch, 2)
        dispatcher = copy.copy(layer.token_dispatcher)
        dispatcher.shared_experts = None
        sent, weights = dispatcher.dispatch_preprocess(tokens, routing_map, probs.detach())
        sent, weights = dispatcher.token_dispatch(sent, weights)
        rows, counts, _ = dispatcher.dispatch_postprocess(sent, weights)
        self._latest[id(layer)] = Dispatched(
            rows=rows.long(),
            counts=tuple(int(count) for count in counts),
            shape=(length, batch),
            sources=self._all_sources(layer),
        )

    def _all_sources(self, layer: MoELayer) -> tuple[TokenSource, ...]:
        group = layer.token_dispatcher.tp_ep_group
        if id(group) not in self._sources:
            tp, cp = self._coordinates
            found: list[Any] = [None] * group.size()
            dist.all_gather_object(found, (dist.get_rank(), tp, cp), group=group)
            self._sources[id(group)] = tuple(TokenSource(rank=r, tp=t, cp=c) for r, t, c in found)
        return self._sources[id(group)]
