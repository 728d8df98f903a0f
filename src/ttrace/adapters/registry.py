"""Adapters: the only place that knows frameworks.

`find_adapter` picks the one that fits a model; each adapter answers the questions of core.adapter.
"""

from __future__ import annotations

import sys
from typing import Any

from torch import nn

from ttrace.adapters.base import Adapter
from ttrace.adapters.native.adapter import NativeAdapter


def find_adapter(model: Any) -> Adapter:
    """The adapter for this model; native PyTorch serves every plain module."""
    chunks = model if isinstance(model, (list, tuple)) else [model]
    if any(isinstance(chunk, nn.Module) and _is_megatron(chunk) for chunk in chunks):
        # Only its users have the package.
        from ttrace.adapters.megatron.adapter import MegatronAdapter

        return MegatronAdapter(chunks)
    return NativeAdapter(model)


def _is_megatron(chunk: nn.Module) -> bool:
    """Whether the model, inside its wrappers, is one of Megatron's."""
    module = sys.modules.get("megatron.core.transformer.module")
    return module is not None and any(
        isinstance(part, module.MegatronModule) for part in chunk.modules()
    )
