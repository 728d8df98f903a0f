"""Going on with the trace of a run that was killed: which of its steps are whole.

Enters: the folder of a rank. Leaves: where its journal goes on, behind the last step that ended.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ttrace.core.door import from_dict, parse_json
from ttrace.core.record import RankInfo, StepMark
from ttrace.errors import UsageError
from ttrace.trace import journal
from ttrace.trace.files import LocalFiles
from ttrace.trace.lines import Lines
from ttrace.trace.manifest import read_manifest


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
    chain = manifest.chain()
    kept, stop, records = copy.copy(chain), 0, 0
    steps: list[int] = []
    lines = Lines(path, info.rank, chain, path.open("rb"))
    for key, text in lines:
        if key == journal.STEP:
            mark = from_dict(StepMark, parse_json(text))
            kept, stop, records = copy.copy(chain), lines.stop, mark.records
            steps.append(mark.number)
        elif key == journal.END:
            raise UsageError(f"{folder} is whole, its run came to the end: nothing is left to do")
    return Kept(
        chain=kept,
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
    ends = [dict(_ends_of_steps(folder)) for folder in folders]
    common = sorted(set.intersection(*map(set, ends))) if ends else []
    for folder, stops in zip(folders, ends, strict=True):
        os.truncate(folder / journal.JOURNAL, stops[common[-1]] if common else 0)
    return tuple(common)


def _ends_of_steps(folder: Path) -> Iterator[tuple[int, int]]:
    """The number of every step that a rank has recorded, and where its line ends in the journal."""
    rank = int(folder.name.removeprefix("rank-"))
    if not (folder / journal.MANIFEST).exists():
        return
    manifest = read_manifest(LocalFiles(folder.parent), rank)
    path = folder / journal.JOURNAL
    lines = Lines(path, rank, manifest.chain(), path.open("rb"))
    for key, text in lines:
        if key == journal.STEP:
            yield from_dict(StepMark, parse_json(text)).number, lines.stop
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
