"""Tokens that other ranks sent here, as one dense tensor for each of these ranks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch

from ttrace.adapters.base import SentTokens


def dense_rows(
    local: torch.Tensor, sent: Iterable[SentTokens]
) -> Iterator[tuple[SentTokens, torch.Tensor]]:
    """Each with the rows that it names, where they stood; all others are zero. On their device."""
    for part in sent:
        dense = local.new_zeros(part.layout.local_shape)
        flat = dense.view(-1, *local.shape[1:])
        flat[part.places.to(local.device)] = local[part.rows.to(local.device)]
        yield part, dense
