"""The example's Megatron training on CPU ranks, as functions that an experiment runs.

    alone(layout)                   the reference: the same model in one process
    on_ranks(4, layout, planted)    spread over ranks, with a bug named "module:function"

A layout is fields of the example's gpt.Layout.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from contextlib import ExitStack
from pkgutil import resolve_name
from typing import Any

from ttrace.lab.run import Function

# What the reference must have in common with a layout; all else says how it is spread.
_OF_MODEL = frozenset(
    {
        *("bf16", "experts", "groups", "layers", "microbatches", "mtp", "per_token", "steps"),
        *("untied", "z_loss"),
    }
)


def on_ranks(ranks: int, layout: Mapping[str, Any], planted: str = "") -> Function:
    fields = tuple(sorted(layout.items()))
    return Function(train_rank, ranks=ranks, arguments=(fields, planted))


def alone(layout: Mapping[str, Any], planted: str = "") -> Function:
    """One process with the model of this layout."""
    model = {name: value for name, value in layout.items() if name in _OF_MODEL}
    return on_ranks(1, model, planted)


def changed(function: Function, **layout: Any) -> Function:
    """The same training, and the same bug, with other fields of its layout."""
    fields, planted = function.arguments
    return on_ranks(function.ranks, dict(fields) | layout, planted)


def train_rank(fields: tuple[tuple[str, Any], ...], planted: str) -> None:
    """Everything one rank does."""
    import torch.distributed as dist

    warnings.simplefilter("ignore")  # that Transformer Engine and Apex are not installed
    from zoo.megatron.cpu import on_cpu

    with on_cpu(), ExitStack() as stack:
        import gpt
        import train_traced
        from megatron.core import parallel_state

        layout = gpt.Layout(**dict(fields))
        if planted:
            resolve_name(planted)(stack)
        gpt.initialise(layout)
        try:
            train_traced.train(layout)
            dist.barrier()
        finally:
            parallel_state.destroy_model_parallel()
