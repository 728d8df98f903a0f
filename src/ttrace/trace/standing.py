"""How far each rank of a run is, while others than this process run it.

    WorldStanding(world_size=4, ended={0: 1, 1: 1}, under_way=(3,))      rank 2 has not begun

Enters: a folder that processes of other machines may still write into. It is looked at again and
again, so a rank that has ended is not read twice. Nothing is verified: whoever reads the trace
says what is wrong with it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from ttrace.core.limits import RANKS
from ttrace.errors import TraceNotFound
from ttrace.trace import journal
from ttrace.trace.files import LocalFiles, rank_folders
from ttrace.trace.progress import journal_end


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldStanding:
    """Which ranks have ended, with how many steps, and which have begun and not ended."""

    world_size: int | None = None  # None until a rank has told it
    ended: Mapping[int, int] = field(default_factory=dict)  # rank -> steps that it recorded
    under_way: tuple[int, ...] = ()

    @property
    def is_over(self) -> bool:
        """Whether every rank of the world has come to its end."""
        return self.world_size is not None and not self.under_way and not self.absent

    @property
    def absent(self) -> tuple[int, ...]:
        """Ranks of the world that have not begun."""
        begun = {*self.ended, *self.under_way}
        return tuple(rank for rank in range(self.world_size or 0) if rank not in begun)


def standing(folder: Path, earlier: WorldStanding) -> WorldStanding:
    """How far the ranks are now; `earlier` is what was known before."""
    size, ended = earlier.world_size, dict(earlier.ended)
    under_way = []
    for rank, path in _ranks(folder):
        if rank in ended:
            continue
        size = size or _world_size(path)
        steps = _steps_at_end(path)
        if steps is None:
            under_way.append(rank)
        else:
            ended[rank] = steps
    return WorldStanding(world_size=size, ended=ended, under_way=tuple(under_way))


def trail(folder: Path) -> frozenset[tuple[int, int]]:
    """Ranks with the bytes of their journals: it changes as soon as one of them does anything."""
    return frozenset((rank, _size_bytes(path / journal.JOURNAL)) for rank, path in _ranks(folder))


def last_step(folder: Path, rank: int) -> int | None:
    """The number of the last step that a rank has recorded; None where it has none."""
    last = None
    try:
        with (folder / journal.rank_folder(rank) / journal.JOURNAL).open("rb") as file:
            for line in file:
                if line.startswith(b'{"%b":' % journal.STEP.encode()):
                    last = int(json.loads(line)[journal.STEP]["number"])
    except (OSError, ValueError, KeyError, TypeError):
        return last
    return last


def _ranks(folder: Path) -> Iterator[tuple[int, Path]]:
    with suppress(TraceNotFound):  # nobody has made the folder yet
        yield from (
            (rank, folder / name) for rank, name in rank_folders(LocalFiles(folder)).items()
        )


def _world_size(path: Path) -> int | None:
    try:
        size = int(json.loads((path / journal.MANIFEST).read_bytes())["world_size"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return size if 0 < size <= RANKS else None


def _steps_at_end(path: Path) -> int | None:
    try:
        end = journal_end(LocalFiles(path.parent), path.name)
        return None if end is None else int(end["steps"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _size_bytes(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
