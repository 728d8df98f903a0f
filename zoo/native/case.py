"""What a case is: a training job, the bugs planted in it, and the answer a checker has to find."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

Train = Callable[[frozenset[str]], None]
Place = tuple[str, str]  # where, part: as a report names them


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One bug, or several planted together.

    `train` is called on every rank with a process group in place: of one rank for the reference,
    of `world_size` for the candidate. The correct twin is the same call without bugs.
    """

    name: str
    title: str
    origin: str
    layout: str
    train: Train
    expected: tuple[Place, ...]
    world_size: int = 2
    steps: int = 1
    bugs: frozenset[str] = frozenset()
    is_hidden: bool = False  # too small for the norms of a plain comparison

    @property
    def planted(self) -> frozenset[str]:
        return self.bugs or frozenset({self.name})
