"""What recording cost a run: bytes on disk, and seconds of its last recorded step."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingCost:
    """Of all ranks together, and of the slowest; `hook_seconds` are a part of `step_seconds`."""

    size_bytes: int
    steps: int
    step_seconds: float
    hook_seconds: float

    @property
    def share(self) -> float:
        """Of the step, that went into hooks."""
        return self.hook_seconds / self.step_seconds if self.step_seconds > 0 else 0.0
