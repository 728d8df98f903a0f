"""Adapters: the only place that knows frameworks.

`find_adapter` picks the one that fits a model; each adapter answers the questions of core.adapter.
"""

from __future__ import annotations

from typing import Any

from ttrace.adapters.native import NativeAdapter
from ttrace.core.adapter import Adapter


def find_adapter(model: Any) -> Adapter:
    """The adapter for this model; native PyTorch serves every plain module."""
    return NativeAdapter(model)
