"""Drift: replicas that differ, and what a run that was watched for it has told.

Enters: what ranks found while they trained. Leaves: values for a file and for sentences.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated

from ttrace.core.ids import display_module
from ttrace.core.limits import ITEMS, RANKS, AtMost, Between, Digest, Label, Rank, Size
from ttrace.text import list_ranks

WATCH_SCHEMA = 1  # of what is written of a watched run


class SharedKind(StrEnum):
    """What replicas share, in the order of a step."""

    GRADIENT = "gradient"  # as the optimizer gets it
    PARAMETER = "parameter"  # after the step
    BUFFER = "buffer"  # after the step


_Ranks = Annotated[tuple[Rank, ...], AtMost(ITEMS)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """One of the values that replicas have, by its digest, and who has it."""

    digest: Digest
    ranks: _Ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """One tensor whose replicas differ after a step, for the first time."""

    step: Size
    kind: SharedKind
    module: Label
    name: Label
    box: Label  # dtype, and which part of the logical tensor it is
    versions: Annotated[tuple[Version, ...], AtMost(ITEMS)]  # those of most ranks first

    @property
    def tensor(self) -> str:
        return f"{display_module(self.module)}.{self.name}"

    @property
    def majority(self) -> tuple[int, ...]:
        """The ranks that most others agree with; none where as many have another value."""
        first, *others = self.versions
        is_clear = all(len(other.ranks) < len(first.ranks) for other in others)
        return first.ranks if is_clear else ()

    @property
    def ranks(self) -> tuple[int, ...]:
        """Who has to be looked at: the minority, or all where there is none."""
        right = self.majority
        return tuple(sorted(r for v in self.versions for r in v.ranks if r not in right))


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedRun:
    """What was watched so far, and what was found; written by the first rank.

    `unjudged`: how many tensors have one name and place on several ranks, and differed when they
    were seen first: parts of what the framework does not know to be split, running statistics,
    gradients that the optimizer itself reduces.
    """

    schema: Annotated[int, Between(WATCH_SCHEMA, WATCH_SCHEMA)] = WATCH_SCHEMA
    world_size: Annotated[int, Between(1, RANKS)]
    steps: Size = 0  # that the run made while it was watched
    watched: Size = 0  # of which so many were compared
    compared: Mapping[SharedKind, Size] = field(default_factory=dict)  # tensors with replicas
    unjudged: Mapping[SharedKind, Size] = field(default_factory=dict)
    names: Annotated[tuple[Label, ...], AtMost(ITEMS)] = ()  # of some of these
    drifts: Annotated[tuple[Drift, ...], AtMost(ITEMS)] = ()
    more_drifts: Size = 0
    broke_off: Label | None = None  # why
    ended: bool = False  # whether the run came to its end
    seconds: float = 0.0  # that watching took on this rank

    @property
    def is_compared(self) -> bool:
        return self.watched > 0 and any(self.compared.values())


def versions_of(digests: Mapping[int, str]) -> tuple[Version, ...]:
    """What ranks have, by rank, as versions; of as many ranks, that of the first comes first."""
    ranks: dict[str, list[int]] = defaultdict(list)
    for rank, digest in sorted(digests.items()):
        ranks[digest].append(rank)
    found = [Version(digest=digest, ranks=tuple(who)) for digest, who in ranks.items()]
    return tuple(sorted(found, key=lambda each: (-len(each.ranks), each.ranks)))


def in_words(drift: Drift) -> str:
    """One line, for the log of the run and for who started it."""
    others = [rank for version in drift.versions for rank in version.ranks]
    told = f"step {drift.step}: {drift.kind} {drift.tensor} differs between replicas"
    if not drift.majority:
        return f"{told}: {list_ranks(sorted(others))}"
    return f"{told}: {list_ranks(drift.ranks)} from {list_ranks(drift.majority)}"
