"""Adapters: the only place that knows frameworks.

`find_adapter` picks the one that fits a model; each adapter answers the questions of core.adapter.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from torch import nn

from ttrace.adapters.native import NativeAdapter
from ttrace.core.adapter import Adapter
from ttrace.errors import UsageError


def find_adapter(chunks: Sequence[nn.Module]) -> Adapter:
    """The adapter for this model; native PyTorch serves every plain module."""
    if any(map(_is_megatron, chunks)):
        from ttrace.adapters.megatron import MegatronAdapter  # only its users have the package

        return MegatronAdapter(chunks)
    if len(chunks) > 1:
        raise UsageError(
            f"{len(chunks)} modules were given as the model; only Megatron-Core models come in "
            "chunks: give the one module that contains all others"
        )
    return NativeAdapter(chunks[0])


def _is_megatron(chunk: nn.Module) -> bool:
    """Whether the model, inside its wrappers, is one of Megatron's."""
    module = sys.modules.get("megatron.core.transformer.module")
    return module is not None and any(
        isinstance(part, module.MegatronModule) for part in chunk.modules()
    )
