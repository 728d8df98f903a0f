"""What-if results with gaps and distances that a test gives."""

from __future__ import annotations

from typing import Any

from ttrace.core.whatif import PreciseGroup, RunReading, WhatIf


def reading(gap: float, distance: float) -> RunReading:
    return RunReading(loss=5 + gap, loss_gap=gap, gradient_distance=distance)


def group(gap: float, distance: float, name: str = "layers.0") -> PreciseGroup:
    return PreciseGroup(name=name, modules=(name,), changed=3, reading=reading(gap, distance))


def whatif(*groups: PreciseGroup, together: PreciseGroup | None = None, **changed: Any) -> WhatIf:
    fields: dict[str, Any] = {
        "patterns": ("*",),
        "reference_loss": 5.0,
        "reference_grad_norm": None,
        "gradient_norm": 1.0,
        "loss_dtype": "float32",
        "loss_eps": 2.0**-23,
        "candidate": reading(0.1, 0.2),
        "together": together or group(0.0, 0.0, "all"),
        "groups": groups or (group(0.0, 0.0),),
    }
    return WhatIf(**fields | changed)
