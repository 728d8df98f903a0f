"""Auxiliary losses: numbers that Megatron adds to the loss in backward without returning them.

While open, every one is recorded as an output of the module that makes it: of a router its load
balancing and z-loss, of the model the loss of each multi-token head. Coefficients are in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from megatron.core.transformer.moe import router
from megatron.core.transformer.multi_token_prediction import MTPLossAutoScaler

from ttrace.adapters.base import Aside
from ttrace.adapters.megatron.layouts import Ranks
from ttrace.adapters.patching import patched
from ttrace.core.layout import Layout

# Its counts are those of all data-parallel ranks and earlier microbatches: no sum of shares.
_GLOBAL = "global_load_balancing_loss"


@contextmanager
def watch_losses(ranks: Ranks, aside: Aside, *, per_token: bool) -> Iterator[None]:
    """Calls `aside(slot, value, layout)` for every auxiliary loss."""
    shares = _summed(ranks, "tp", "cp")  # each rank has the share of its own tokens

    def balance(original: Any, self: Any, activation: Any, *args: Any, **kwargs: Any) -> Any:
        given = dict(zip(("aux_loss_coeff", "aux_loss", "aux_loss_name"), args, strict=False))
        given |= kwargs
        if given["aux_loss_name"] != _GLOBAL:
            aside(given["aux_loss_name"], given["aux_loss"], shares)
        return original(self, activation, *args, **kwargs)

    def squares(original: Any, *args: Any, **kwargs: Any) -> Any:
        loss = original(*args, **kwargs)
        aside("z_loss", loss, shares)
        return loss

    def head(original: Any, activation: Any, losses: torch.Tensor) -> Any:
        # A mean over the tokens of this rank, or a sum; the former is then averaged over ranks.
        total = losses.detach().sum() / (1 if per_token else ranks.cp[1])
        aside("mtp_loss", total, _summed(ranks, "cp"))
        return original(activation, losses)

    with (
        patched(router.TopKRouter, "attach_and_log_load_balancing_loss", balance),
        patched(router, "z_loss_func", squares),
        patched(MTPLossAutoScaler, "apply", head),
    ):
        yield


def _summed(ranks: Ranks, *axes: str) -> Layout:
    sizes = {"tp": ranks.tp[1], "cp": ranks.cp[1]}
    return Layout.full(()).summed_over(*(axis for axis in axes if sizes[axis] > 1))
