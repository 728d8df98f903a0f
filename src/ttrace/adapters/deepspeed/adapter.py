"""DeepSpeed: what a rank holds of parameters, gradients and states under ZeRO."""

from __future__ import annotations

from typing import Any

from ttrace.adapters.base import Adapter


class DeepSpeedAdapter(Adapter):
    """Answers for an engine of deepspeed.initialize."""

    name = "deepspeed"

    def __init__(self, engine: Any) -> None:
        super().__init__(engine.module)
        self._engine = engine
