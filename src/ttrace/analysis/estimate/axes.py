"""Axes: how ranks lie in the recorded mesh, what each axis splits there, and the stated mesh.

Enters: what ranks say of their places, and layouts of the same tensor on two ranks that differ in
one axis alone. Leaves: the dims that an axis splits; None where nobody can know.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ttrace.core.limits import RANKS
from ttrace.core.mesh import Mesh
from ttrace.core.record import RankInfo, Record
from ttrace.errors import UsageError

PIPELINE = "pp"
DATA = "dp"  # what ranks are along that no mesh tells apart
_DATA_NAMES = frozenset({DATA, "ddp", "data", "dp_replicate", "replicate"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Sizes of the recorded axes, and the place of every recorded rank."""

    sizes: dict[str, int]
    of_rank: dict[int, tuple[int, ...]]
    data: frozenset[str]  # along these each rank has samples of its own

    def neighbour(self, rank: int, axis: str) -> int | None:
        """A rank that differs in this axis alone."""
        at = list(self.sizes).index(axis)
        own = self.of_rank[rank]
        other = (*own[:at], 0 if own[at] else 1, *own[at + 1 :])
        return next((found for found, place in self.of_rank.items() if place == other), None)

    def stage(self, rank: int) -> int:
        """Of the pipeline."""
        names = list(self.sizes)
        return self.of_rank[rank][names.index(PIPELINE)] if PIPELINE in names else 0

    def beside(self, rank: int) -> tuple[int, ...]:
        """Its place without the pipeline."""
        names = list(self.sizes)
        return tuple(c for n, c in zip(names, self.of_rank[rank], strict=True) if n != PIPELINE)


def places_of(infos: Mapping[int, RankInfo]) -> Places:
    """Ranks that no mesh tells apart are data-parallel: each has samples of its own."""
    ranks = sorted(infos)
    axes = {axis: size for info in infos.values() for axis, (_, size) in info.axes.items()}
    own = [tuple(infos[rank].axes.get(axis, (0, 1))[0] for axis in axes) for rank in ranks]
    mesh = Mesh(axes=axes, coordinates=tuple(own))
    if not mesh.naming:
        sizes = {DATA: len(ranks)} if len(ranks) > 1 else {}
        alone = {rank: (at,)[: len(sizes)] for at, rank in enumerate(ranks)}
        return Places(sizes=sizes, of_rank=alone, data=frozenset(sizes))
    sizes = {axis: axes[axis] for axis, _ in mesh.naming}
    of_rank = {
        rank: tuple(place[at] for _, at in mesh.naming)
        for rank, place in zip(ranks, own, strict=True)
    }
    places = Places(sizes=sizes, of_rank=of_rank, data=frozenset())
    data = frozenset(axis for axis in sizes if _has_own_samples(places, axis, infos))
    return Places(sizes=sizes, of_rank=of_rank, data=data)


def _has_own_samples(places: Places, axis: str, infos: Mapping[int, RankInfo]) -> bool:
    for rank, info in infos.items():
        other = places.neighbour(rank, axis)
        if other is not None and info.batch is not None and infos[other].batch is not None:
            return info.batch != infos[other].batch
    return is_data_name(axis)


def is_data_name(axis: str) -> bool:
    return axis in _DATA_NAMES


def stated_axes(places: Places, axes: str | None, ranks: int | None) -> dict[str, int]:
    """The sizes of all axes: those of the trace, those that are stated, and dp for what is left."""
    stated: dict[str, int] = {}
    for part in (axes or "").split(",") if axes else ():
        name, mark, number = part.strip().partition("=")
        if not (name and mark and number.isdecimal() and int(number) > 0):
            raise UsageError(f"--axes takes sizes such as tp=8,pp=4,dp=2, found {part!r}")
        stated[name] = int(number)
    sizes = {**places.sizes, **stated}
    if ranks is not None:
        known = math.prod(size for axis, size in sizes.items() if axis != DATA)
        found = known * (stated.get(DATA) or ranks // known or 1)
        if found != ranks:
            told = ", ".join(f"{axis} {size}" for axis, size in sizes.items()) or "no axes"
            raise UsageError(
                f"--ranks {ranks} are not what {told} make; leave one of both out, or let the "
                f"number of ranks be a multiple of {known}"
            )
        sizes[DATA] = ranks // known
    if math.prod(sizes.values()) > RANKS:
        raise UsageError(f"--axes make more than {RANKS:,} ranks, which no trace has")
    return sizes


def split_dims(mine: Record, other: Record | None, *, is_data: bool) -> tuple[int, ...] | None:
    """The dims that an axis splits, by the record of a rank and that of its neighbour along it."""
    if other is None or mine.layout is None or other.layout is None:
        return () if is_data or not mine.shape else None
    return _unequal(mine.layout.runs, other.layout.runs)


def _unequal(mine: Sequence[object], others: Sequence[object]) -> tuple[int, ...]:
    if len(mine) != len(others):
        return ()
    return tuple(dim for dim, (a, b) in enumerate(zip(mine, others, strict=True)) if a != b)
