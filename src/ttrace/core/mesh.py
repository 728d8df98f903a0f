"""The mesh: which place every rank has, and names for ranks that say it.

    mesh.name(3)             dp1 tp1
    mesh.common((1, 3))      ("tp1",): exactly the ranks with that coordinate
    mesh.between((0,), (1,)) ("tp",): the axes along which some of them differ in nothing else

Enters: coordinates as the ranks told them. Axes of one rank, and axes that follow from others, name
nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True, kw_only=True)
class Mesh:
    """Sizes of the axes, and the coordinates of every rank in their order; maybe of none."""

    axes: dict[str, int]
    coordinates: tuple[tuple[int, ...], ...] = ()

    @cached_property
    def naming(self) -> tuple[tuple[str, int], ...]:
        """The axes, by name and place, that tell ranks apart; empty where axes do not do that."""
        chosen: list[tuple[str, int]] = []
        classes = 1
        for place, (axis, size) in enumerate(self.axes.items()):
            if size < 2:
                continue
            tried = [*chosen, (axis, place)]
            seen = len({tuple(c[p] for _, p in tried) for c in self.coordinates})
            if seen > classes:
                chosen, classes = tried, seen
        return tuple(chosen) if classes == len(self.coordinates) else ()

    def name(self, rank: int) -> str:
        """dp1 tp0; empty where there is no mesh, or no such rank."""
        if not 0 <= rank < len(self.coordinates):
            return ""
        return " ".join(f"{axis}{self.coordinates[rank][place]}" for axis, place in self.naming)

    def common(self, ranks: Sequence[int]) -> tuple[str, ...]:
        """The coordinates that exactly these ranks have in common; empty where there are none."""
        if not ranks or not all(0 <= rank < len(self.coordinates) for rank in ranks):
            return ()
        first = self.coordinates[ranks[0]]
        fixed = [
            (axis, place)
            for axis, place in self.naming
            if all(self.coordinates[rank][place] == first[place] for rank in ranks)
        ]
        having = {
            rank
            for rank, own in enumerate(self.coordinates)
            if all(own[place] == first[place] for _, place in fixed)
        }
        if having != set(ranks):
            return ()
        return tuple(f"{axis}{first[place]}" for axis, place in fixed)

    def between(self, some: Iterable[int], others: Iterable[int]) -> tuple[str, ...]:
        """The axes along which one of each lie, at the same place otherwise."""
        count = len(self.coordinates)
        near = [self._named(rank) for rank in others if 0 <= rank < count]
        found = set()
        for rank in some:
            if not 0 <= rank < count:
                continue
            own = self._named(rank)
            for other in near:
                apart = [n for n, (a, b) in enumerate(zip(own, other, strict=True)) if a != b]
                if len(apart) == 1:
                    found.add(self.naming[apart[0]][0])
        return tuple(axis for axis, _ in self.naming if axis in found)

    def along(self, axis: str) -> Iterator[tuple[int, int]]:
        """Pairs of neighbours that differ in this axis alone."""
        place = [name for name, _ in self.naming].index(axis)
        by_place = {self._named(rank): rank for rank in range(len(self.coordinates))}
        for own, rank in by_place.items():
            following = (*own[:place], own[place] + 1, *own[place + 1 :])
            if following in by_place:
                yield rank, by_place[following]

    def _named(self, rank: int) -> tuple[int, ...]:
        return tuple(self.coordinates[rank][place] for _, place in self.naming)


NO_MESH = Mesh(axes={})
