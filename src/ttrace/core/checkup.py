"""Checkup: what TTrace recognised of a run and saw of its step, and what further runs will take.

Enters: a step as it was traced; ranks, layers and steps that somebody states. Leaves: values, and
bytes and seconds of a stated run, which are those of the traced step multiplied. No file is read.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from ttrace.errors import UsageError

_STATED = ("ranks", "layers", "steps")
_NUMBER = re.compile("[1-9][0-9]{0,6}")  # chosen: no run has ten million of anything


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
    layers: int  # modules of the list whose modules record the most; 0: there is no list
    layer_bytes_per_rank: int  # of all modules of that list, as a part of `bytes_per_rank`
    layer_fingerprint_bytes_per_rank: int
    free_bytes: int  # on the disk that traces will be written to
    command_seconds: float  # from its start until the step was recorded
    seconds: float  # of the step
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


@dataclass(frozen=True, slots=True, kw_only=True)
class StatedRun:
    """A run that somebody has in mind; None is as it was traced."""

    ranks: int | None = None
    layers: int | None = None
    steps: int = 1


AS_TRACED = StatedRun()


def parse_stated_run(text: str) -> StatedRun:
    """The run that `ranks=64,layers=80,steps=1` states, or UsageError."""
    numbers: dict[str, int] = {}
    faults = []
    for part in text.split(","):
        key, _, number = part.strip().partition("=")
        if key in _STATED and key not in numbers and _NUMBER.fullmatch(number):
            numbers[key] = int(number)
        else:
            faults.append(repr(part))
    if faults:
        raise UsageError(
            f"--scale cannot use {', '.join(faults)}: expected ranks, layers or steps, each once "
            "and with a whole number from 1 to 9,999,999; say for instance "
            "`--scale ranks=64,layers=80,steps=1`, and leave out what stays as the command has it"
        )
    return StatedRun(**numbers)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCost:
    """What one run takes: bytes on disk of a rank, in both forms, and seconds until its end."""

    ranks: int
    layers: int
    steps: int
    bytes_per_rank: float
    fingerprint_bytes_per_rank: float
    seconds: float


def predict_run(found: Checkup, stated: StatedRun = AS_TRACED) -> RunCost:
    """The cost of a stated run: each rank, layer and step is taken to be like a traced one."""
    if stated.layers is not None and not found.layers:
        raise UsageError(
            f"--scale says layers={stated.layers}, but no list of modules (layers.0, layers.1 ...) "
            "recorded anything, expected one whose layers can be multiplied; leave layers out"
        )
    layers = stated.layers or found.layers
    added = layers / found.layers - 1 if found.layers else 0.0  # 2 traced, 80 stated: 39 times more
    step_bytes = found.bytes_per_rank + added * found.layer_bytes_per_rank
    small_bytes = found.fingerprint_bytes_per_rank + added * found.layer_fingerprint_bytes_per_rank
    # Nobody measured what part of the seconds its layers took: bytes stand for them.
    growth = step_bytes / found.bytes_per_rank if found.bytes_per_rank else 1.0
    starting_seconds = max(0.0, found.command_seconds - found.seconds)
    return RunCost(
        ranks=stated.ranks or found.ranks,
        layers=layers,
        steps=stated.steps,
        bytes_per_rank=step_bytes * stated.steps,
        fingerprint_bytes_per_rank=small_bytes * stated.steps,
        seconds=starting_seconds + found.seconds * growth * stated.steps,
    )
