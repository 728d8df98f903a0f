"""How far a run is: while processes write it, when they have ended, and after they were killed.

    TRACE/rank-00003/journal.jsonl    the last line is its end, once all steps are recorded
          died.txt                    the run had recorded everything and did not end well
          not-attached-4711.txt       why a process of it could not be traced

    WorldStanding(world_size=4, ended={0: 1, 1: 1}, under_way=(3,))      rank 2 has not begun

Enters: a folder that processes, also of other machines, may still write into or copy to. It is
asked again and again while they run, so nothing is read but manifests and the last lines of
journals, and a rank that has ended is not read twice. Nothing is verified: whoever reads the trace
says what is wrong with it. Only who goes on with a run that was killed reads whole journals, for
which of its steps are whole.
"""

from __future__ import annotations

import copy
import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ttrace.core.door import from_dict, parse_json
from ttrace.core.limits import RANKS
from ttrace.core.record import RankInfo, StepMark
from ttrace.errors import TraceError, TraceNotFound, UsageError
from ttrace.trace import journal
from ttrace.trace.files import LocalFiles, TraceFiles, files_of, rank_folders, rank_names
from ttrace.trace.manifest import Manifest, read_manifest
from ttrace.trace.store import PathOrUrl


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


_DIED = "died.txt"
REFUSED = "not-attached-"  # and the process that says so
_MOST_BYTES = 1 << 20  # chosen: an end that lists many tensors is shorter
_MOST_CHARS = 200  # chosen: a name of a signal, and room
_MOST_REASONS = 3  # chosen: ranks tend to have the same


def is_recorded(folder: PathOrUrl, steps: int) -> bool:
    """Whether all ranks of the world have closed traces of so many steps."""
    try:
        files = files_of(folder)
        ranks = rank_names(files)
        if not ranks:
            return False
        with files.open(f"{ranks[0]}/{journal.MANIFEST}", holds="a manifest") as file:
            count = int(json.load(file)["world_size"])
        return len(ranks) >= count and all(
            _has_recorded(files, journal.rank_folder(rank), steps) for rank in range(count)
        )
    except (TraceError, OSError, ValueError, KeyError, TypeError):
        return False  # not written yet, or not ours: whoever reads the trace says what is wrong


def write_death(folder: PathOrUrl, how: str) -> None:
    """Say beside a whole trace that its run did not end well."""
    (folder / _DIED).write_text(how, encoding="utf-8")


def read_death(folder: PathOrUrl) -> str | None:
    """How a run ended that had recorded everything; None where it ended well."""
    try:
        return _text_of(folder / _DIED, _MOST_CHARS)
    except (TraceError, OSError):
        return None


def write_refusal(folder: Path, why: str) -> None:
    """Say beside the ranks of a trace why this process could not be traced."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{REFUSED}{os.getpid()}.txt").write_text(why, encoding="utf-8")


def read_refusals(folder: PathOrUrl) -> tuple[str, ...]:
    """Why processes of a run could not be traced; each reason once."""
    found: dict[str, None] = {}
    for name in files_of(folder).beside():
        if name.startswith(REFUSED) and name.endswith(".txt"):
            found[_text_of(folder / name, 2 * _MOST_CHARS)] = None
    return tuple(found)[:_MOST_REASONS]


def _text_of(place: PathOrUrl, most_chars: int) -> str:
    with place.open("rb") as file:
        return file.read(4 * most_chars).decode("utf-8", errors="replace")[:most_chars]


def _has_recorded(files: TraceFiles, rank: str, steps: int) -> bool:
    """Whether a rank has closed its trace, with so many steps or all that it had room for."""
    end = journal_end(files, rank)
    return end is not None and (int(end["steps"]) >= steps or end.get("is_full") is True)


def journal_end(files: TraceFiles, rank: str) -> Any:
    """The last line of a rank's journal, if that is its end; nobody has looked at it closely."""
    lines = files.tail(f"{rank}/{journal.JOURNAL}", _MOST_BYTES).splitlines(keepends=True)
    return journal.unverified_end(lines[-1] if lines else b"")


def cost_of(folder: PathOrUrl) -> RecordingCost | None:
    """What recording cost a run; None while a rank has not ended its trace, or is unreadable."""
    try:
        files = files_of(folder)
        ends = [journal_end(files, rank) for rank in rank_names(files)]
        size_bytes = files.segments_bytes()
    except (TraceError, OSError, ValueError):  # whoever reads the trace says what is wrong with it
        return None
    if not ends or not all(isinstance(end, dict) for end in ends):
        return None
    return RecordingCost(
        size_bytes=size_bytes,
        steps=int(min(_number(end, "steps") for end in ends)),
        step_seconds=max(_number(end, "seconds") for end in ends),
        hook_seconds=max(_number(end, "recording_seconds") for end in ends),
    )


def _number(end: dict[str, Any], name: str) -> float:
    value = end.get(name)
    is_number = type(value) in (int, float) and math.isfinite(value)  # type: ignore[arg-type]
    return float(value) if is_number else 0.0  # type: ignore[arg-type]


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
        size = size or _world_size(path)  # what copies a rank may bring its journal first
        if rank in ended:
            continue
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What stays of a journal."""

    chain: journal.Chain
    stop: int  # where the line of the last step ends in the file
    records: int
    steps: tuple[int, ...]  # that ended
    segments: int  # files that are there


def resumable(folder: Path, info: RankInfo) -> Kept | None:
    """What a run of this rank can go on from; None where it left nothing."""
    path = folder / journal.JOURNAL
    if not path.exists() or _died_at_once(folder, path):
        return None
    manifest = read_manifest(LocalFiles(folder.parent), info.rank)
    _require_same_run(folder, manifest.info, info)
    chain, stop, records = manifest.chain(), 0, 0
    steps: list[int] = []
    for mark, stop, chain in _ended_steps(folder, manifest):  # noqa: B007  (the last ones stay)
        records = mark.records
        steps.append(mark.number)
    return Kept(
        chain=chain,
        stop=stop,
        records=records,
        steps=tuple(steps),
        segments=len(list(folder.glob("seg-*.safetensors"))),
    )


def keep_common_steps(trace: Path) -> tuple[int, ...]:
    """Cut off what not all ranks had recorded when their run was killed; the steps that are kept.

    To be called before any rank goes on: each then goes on behind the same step.
    """
    folders = sorted(path for path in trace.glob("rank-*") if (path / journal.JOURNAL).exists())
    ends = [_ends_of_steps(folder) for folder in folders]
    common = sorted(set.intersection(*map(set, ends))) if ends else []
    for folder, stops in zip(folders, ends, strict=True):
        os.truncate(folder / journal.JOURNAL, stops[common[-1]] if common else 0)
    return tuple(common)


def _ends_of_steps(folder: Path) -> dict[int, int]:
    """Where the line of every step that a rank has recorded ends in its journal."""
    if not (folder / journal.MANIFEST).exists():
        return {}
    rank = int(folder.name.removeprefix(journal.RANK))
    manifest = read_manifest(LocalFiles(folder.parent), rank)
    return {mark.number: stop for mark, stop, _ in _ended_steps(folder, manifest)}


def _ended_steps(folder: Path, manifest: Manifest) -> Iterator[tuple[StepMark, int, journal.Chain]]:
    """Every step that came to its end, where its line ends in the file, and the chain there."""
    path, chain = folder / journal.JOURNAL, manifest.chain()
    lines = journal.Lines(path, manifest.info.rank, chain, path.open("rb"))
    for key, text in lines:
        if key == journal.STEP:
            yield from_dict(StepMark, parse_json(text)), lines.stop, copy.copy(chain)
        elif key == journal.END:
            raise UsageError(f"{folder} is whole, its run came to the end: nothing is left to do")


def _died_at_once(folder: Path, path: Path) -> bool:
    """Whether the run had not even said who it is; what it left is removed then."""
    if (folder / journal.MANIFEST).exists() or path.stat().st_size > 0:
        return False
    for left in sorted(folder.glob(f"{journal.MANIFEST}.*")):
        left.unlink()
    path.unlink()  # last: a folder with a journal is looked at again
    return True


def _require_same_run(folder: Path, before: RankInfo, now: RankInfo) -> None:
    for what in ("world_size", "axes", "noise_seed"):
        if getattr(before, what) != getattr(now, what):
            raise UsageError(
                f"{folder} was recorded with {what} {getattr(before, what)}, this run has "
                f"{getattr(now, what)}: go on in the same layout, or choose another folder"
            )
    if {m.path for m in before.modules} != {m.path for m in now.modules}:
        raise UsageError(
            f"{folder} was recorded of another model: expected the modules of before; choose "
            "another folder"
        )
