"""Where the rows of experts belong: each to its token's place among all tokens.

Enters: a module inside experts, and a tensor whose rows stand for tokens of several ranks. Leaves:
a BoundarySpec that tells of every row whose token it is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from ttrace.adapters.base import BoundarySpec, SentTokens, somewhere
from ttrace.adapters.megatron.experts import Dispatched, Dispatches, TokenSource
from ttrace.adapters.megatron.layouts import Ranks, Role, role_of, sequence_layout, shard_of
from ttrace.core.ids import Kind
from ttrace.core.layout import Layout

_BATCH = 1  # of [sequence, batch, hidden]


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
