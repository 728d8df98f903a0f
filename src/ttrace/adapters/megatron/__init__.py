"""The framework Megatron-Core; its adapter is `MegatronAdapter`.

The entry point `megatron` of ttrace.adapters names this package: `matches` and `make` are public.
Neither the package nor `matches` imports Megatron, which only its users have.
"""

from __future__ import annotations

import sys
from typing import Any

from torch import nn

from ttrace.adapters.base import Adapter

__all__ = ["make", "matches"]


def matches(model: Any) -> bool:
    """Whether a chunk of the model, inside its wrappers, has a module of Megatron's."""
    module = sys.modules.get("megatron.core.transformer.module")
    return module is not None and any(
        isinstance(part, module.MegatronModule)
        for chunk in _chunks(model)
        if isinstance(chunk, nn.Module)
        for part in chunk.modules()
    )


def make(model: Any) -> Adapter:
    from ttrace.adapters.megatron.adapter import MegatronAdapter

    return MegatronAdapter(_chunks(model))


def _chunks(model: Any) -> list[Any]:
    return list(model) if isinstance(model, (list, tuple)) else [model]
