"""The framework DeepSpeed: its engines with ZeRO 0 to 3; its adapter is `DeepSpeedAdapter`.

The entry point `deepspeed` of ttrace.adapters names this package: `matches` and `make` are public.
"""

from __future__ import annotations

import sys
from typing import Any

from ttrace.adapters.base import Adapter

__all__ = ["make", "matches"]


def matches(model: Any) -> bool:
    """Whether it is an engine; who has one has imported the package."""
    engine = sys.modules.get("deepspeed.runtime.engine")
    return engine is not None and isinstance(model, engine.DeepSpeedEngine)


def make(model: Any) -> Adapter:
    from ttrace.adapters.deepspeed.adapter import DeepSpeedAdapter

    return DeepSpeedAdapter(model)
