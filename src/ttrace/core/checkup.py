"""Checkup: what TTrace recognised of a run and saw of its step, before anything is compared."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Watched(StrEnum):
    """What can be seen of a step, in its order; finer than the parts that a verdict speaks of."""

    VALUES = "values"  # that modules return
    GRADIENTS = "gradients"  # of those values
    LOCAL = "local"  # gradients of parameters on each rank, before any reduction
    REDUCED = "reduced"
    NORM = "norm"
    STATE = "state"  # of the optimizer
    UPDATES = "updates"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """How much of one thing was seen; `expected` is None where nobody can know."""

    watched: Watched
    seen: int
    expected: int | None = None

    @property
    def is_whole(self) -> bool:
        return self.seen >= self.expected if self.expected is not None else self.seen > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkup:
    """One traced step of one command."""

    adapter: str
    device: str
    versions: dict[str, str]
    world_size: int
    ranks: int  # that recorded something
    unfinished: tuple[int, ...]  # ranks whose trace has no end
    axes: dict[str, int]
    batch_parts: int | None  # among how many ranks the batch is divided, where the framework says
    wrappers: tuple[str, ...]
    optimizers: tuple[str, ...]
    modules: int
    never_called: tuple[str, ...]
    parameters: int
    sights: tuple[Sight, ...]
    inferred: int  # tensors whose place in the whole is found by shape and content
    tensors: int
    bytes_per_rank: int
    fingerprint_bytes_per_rank: int  # that fingerprints of the same tensors would take
    free_bytes: int  # on the disk that traces will be written to
    seconds: float
    recording_seconds: float
    problems: tuple[str, ...]  # what could not be recorded
    notes: tuple[str, ...]

    @property
    def size_bytes(self) -> int:
        """Of all ranks."""
        return self.bytes_per_rank * self.ranks

    @property
    def fingerprint_bytes(self) -> int:
        """Of all ranks."""
        return self.fingerprint_bytes_per_rank * self.ranks

    @property
    def unseen(self) -> tuple[Watched, ...]:
        """What a comparison would need and not have; norms and states are not in every step."""
        optional = (Watched.NORM, Watched.STATE)
        return tuple(
            sight.watched
            for sight in self.sights
            if not sight.is_whole and (sight.seen or sight.watched not in optional)
        )

    @property
    def is_whole(self) -> bool:
        is_complete = self.ranks == self.world_size and not self.unfinished
        return is_complete and not self.unseen and not self.problems
