"""What tolerances need to know of one logical tensor of the reference."""

from __future__ import annotations

from dataclasses import dataclass

from ttrace.core.statistics import Statistics


@dataclass(frozen=True, slots=True, kw_only=True)
class Yardstick:
    """The perturbed references against the reference, and a few facts."""

    dtype: str
    volume: int
    sequence: int
    noise: tuple[Statistics, ...]
    jump: float = 0.0  # of one element of an updated parameter (core.unstable)

    @property
    def noise_norm(self) -> float:
        return max(statistics.error_norm for statistics in self.noise)

    @property
    def reference_norm(self) -> float:
        return self.noise[0].reference_norm
