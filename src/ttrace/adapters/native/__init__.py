"""The framework native PyTorch: torch.nn and torch.distributed; its adapter is `NativeAdapter`.

The entry point `native` of ttrace.adapters names this package: `matches` and `make` are public.
"""

from __future__ import annotations

from typing import Any

from ttrace.adapters.base import Adapter

__all__ = ["make", "matches"]


def matches(model: Any) -> bool:
    """Every model: the adapter itself says what it needs of one."""
    return True


def make(model: Any) -> Adapter:
    from ttrace.adapters.native.adapter import NativeAdapter

    return NativeAdapter(model)
