"""Which token is which row of an expert's input?

A dispatcher sends each token's hidden state to the ranks of its experts; nothing travels with it
that tells whose token it is. While a step is traced, the numbers of the tokens are dispatched once
more, by a copy of the same dispatcher, so that every row knows its token: (source rank, place).
A row then has a place in a dense tensor of all tokens, the same in every layout: `ExpertRows` says
so in a BoundarySpec, of a module inside experts and a tensor whose rows stand for tokens.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from megatron.core.transformer.moe.moe_layer import MoELayer
from torch import nn

from ttrace.adapters.base import BoundarySpec, SentTokens, somewhere
from ttrace.adapters.megatron.layouts import Ranks, Role, Seat, role_of, sequence_layout, shard_of
from ttrace.adapters.patching import patched
from ttrace.core.ids import Kind
from ttrace.core.layout import Layout

_BATCH = 1  # of [sequence, batch, hidden]


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


class ExpertRows:
    """Knows the modules inside the experts of one rank, each with its layer and its expert."""

    def __init__(
        self,
        ranks: Ranks,
        dispatches: Dispatches,
        experts: Mapping[int, tuple[Any, int | None]],
        sections: Mapping[int, int],
    ) -> None:
        self._ranks = ranks
        self._dispatches = dispatches
        self._experts = experts
        self._sections = sections

    def has(self, module: nn.Module) -> bool:
        return id(module) in self._experts

    def boundary(
        self, module: nn.Module, kind: Kind, slot: str, tensor: torch.Tensor
    ) -> BoundarySpec | None:
        layer, expert = self._experts[id(module)]
        dispatched = self._dispatches.latest(layer)
        if dispatched is None:
            return somewhere(slot)
        rows = dispatched.rows if expert is None else dispatched.of_expert(expert)
        if tensor.dim() == 0 or tensor.shape[0] != len(rows) or not tensor.is_floating_point():
            return None  # counts of tokens: the routing map says them
        parts = tuple(
            self._rows_from(source, dispatched, rows, module, kind, tensor)
            for source in dispatched.sources
        )
        return BoundarySpec(slot=slot, batch_dim=_BATCH + (expert is None), rows=parts)

    def _rows_from(
        self,
        source: TokenSource,
        dispatched: Dispatched,
        rows: torch.Tensor,
        module: Any,
        kind: Kind,
        tensor: torch.Tensor,
    ) -> SentTokens:
        _, expert = self._experts[id(module)]
        mine = (rows[:, 0] == source.rank).nonzero().flatten()
        places = rows[mine, 1]
        shape = (*dispatched.shape, *tensor.shape[1:])
        ranks = replace(self._ranks, tp=source.tp, cp=source.cp)
        if expert is None:
            owner = torch.repeat_interleave(
                torch.arange(len(dispatched.counts)), torch.tensor(dispatched.counts)
            )
            places = places + owner[mine.cpu()].to(places) * math.prod(dispatched.shape)
            shape = (len(dispatched.counts), *shape)
        at = int(expert is None)
        layout = sequence_layout(shape, ranks, dim=at, scattered=ranks.sequence_parallel)
        if expert is None:
            layout = shard_of(layout, 0, *self._ranks.ep)
        layout = self._inside_expert(layout, module, kind)
        return SentTokens(origin=source.rank, rows=mine, places=places, layout=layout)

    def _inside_expert(self, layout: Layout, module: Any, kind: Kind) -> Layout:
        """Experts' tensor parallelism: columns inside, and sums that the dispatcher makes later."""
        index, count = self._ranks.etp
        if count == 1:
            return layout
        last, is_output = len(layout.shape) - 1, kind in (Kind.OUTPUT, Kind.GRAD_OUTPUT)
        role = role_of(module)
        if role is Role.COLUMN and is_output:
            return shard_of(layout, last, index, count, self._sections.get(id(module), 1))
        if role is Role.ROW and not is_output:
            return shard_of(layout, last, index, count)
        return layout.summed_over("tp") if kind in (Kind.OUTPUT, Kind.GRAD_INPUT) else layout
