"""Reading a trace: what all ranks wrote, whether they were closed or killed.

Enters: a folder that a stranger may have made. Leaves: records that were checked against the files
they point into. The journal is the truth; the headers of segments are only for foreign readers.
Nothing is executed, and nothing outside of the folder is read.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path

from ttrace.core.door import from_dict
from ttrace.core.ids import TensorId, roots_of
from ttrace.core.limits import JOURNALS_BYTES
from ttrace.core.record import RankInfo, Record, StepMark, Summary
from ttrace.core.refused import InWords, Refused
from ttrace.errors import CorruptTrace, TraceNotFound, UnsupportedTrace
from ttrace.trace import journal
from ttrace.trace.lines import JournalLine, Lines
from ttrace.trace.manifest import read_manifest
from ttrace.trace.records import RecordLines
from ttrace.trace.spans import own_file, own_segment, too_short

_RANK_FOLDER = re.compile(r"rank-([0-9]{5,9})")


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTrace:
    """What one rank wrote. `summary` is None when the rank did not end well."""

    info: RankInfo
    records: tuple[Record, ...]
    summary: Summary | None = None
    notes: tuple[str, ...] = ()
    steps: tuple[int, ...] = ()  # that were recorded to their end


@dataclass(frozen=True, kw_only=True)
class Trace:
    """One traced run: all of its ranks that left something on disk."""

    path: Path
    ranks: dict[int, RankTrace]

    @classmethod
    def open(cls, path: Path | str) -> Trace:
        """Read all journals, and check every record against the file that holds its bytes."""
        root = Path(path)
        folders = _rank_folders(root)
        _require_bounded(folders.values())
        read = RecordLines()
        ranks = {rank: _read_rank(root, folder, rank, read) for rank, folder in folders.items()}
        sizes = {rank: trace.info.world_size for rank, trace in ranks.items()}
        if len(set(sizes.values())) > 1:
            raise CorruptTrace(
                f"the ranks of {root} come from different runs: their world sizes are {sizes}; "
                f"trace every run into a folder of its own"
            )
        return cls(path=root, ranks=_with_common_steps(ranks))

    @property
    def world_size(self) -> int:
        return next(iter(self.ranks.values())).info.world_size

    @property
    def loss_parts(self) -> int | None:
        return next(iter(self.ranks.values())).info.loss_parts

    @property
    def missing_ranks(self) -> tuple[int, ...]:
        return tuple(rank for rank in range(self.world_size) if rank not in self.ranks)

    @property
    def steps(self) -> tuple[int, ...]:
        return tuple(sorted({id_.step for id_ in self.by_id()}))

    @functools.cached_property
    def roots(self) -> frozenset[str]:
        """The paths of the models: a single one has an empty path."""
        return roots_of(m.path for trace in self.ranks.values() for m in trace.info.modules)

    def by_id(self) -> dict[TensorId, list[Record]]:
        """The records of every logical tensor, by rank and then in the order of writing."""
        return self._index

    @functools.cached_property
    def _index(self) -> dict[TensorId, list[Record]]:
        index: dict[TensorId, list[Record]] = {}
        for _, trace in sorted(self.ranks.items()):
            for record in trace.records:
                index.setdefault(record.id, []).append(record)
        return index


def devices_of(path: Path) -> frozenset[str]:
    """What the ranks of a trace computed on."""
    found = _rank_folders(path).items()
    return frozenset(
        read_manifest(path, folder / journal.MANIFEST, rank).info.device for rank, folder in found
    )


def _rank_folders(root: Path) -> dict[int, Path]:
    if not root.is_dir():
        raise TraceNotFound(
            f"{root} is {'a file' if root.exists() else 'missing'}: expected the folder of a "
            f"trace; make one with `ttrace run`"
        )
    matches = ((entry, _RANK_FOLDER.fullmatch(entry.name)) for entry in sorted(root.iterdir()))
    found = [(int(match[1]), entry) for entry, match in matches if match and entry.is_dir()]
    folders = {rank: entry for rank, entry in found if entry.name == journal.rank_folder(rank)}
    if not folders:
        raise TraceNotFound(
            f"{root} is not a trace: expected folders {journal.rank_folder(0)} and on, each with a "
            f"{journal.MANIFEST} and a {journal.JOURNAL}; make a trace with `ttrace run`"
        )
    return folders


def _read_rank(root: Path, folder: Path, rank: int, read: RecordLines) -> RankTrace:
    manifest = read_manifest(root, folder / journal.MANIFEST, rank)
    path = own_file(root, folder / journal.JOURNAL, holds=f"the records of rank {rank}")
    lines = Lines(path, rank, manifest.chain())
    content = _Content(root, manifest.info, read)
    for line in lines:
        try:
            content.add(line)
        except Refused as refused:
            raise lines.damaged(refused) from refused
    if lines.is_torn and content.summary is not None:
        raise lines.damaged(Refused(InWords("more bytes"), "nothing after the end of a rank"))
    notes = ["the last journal line was torn and is ignored"] if lines.is_torn else []
    if manifest.digest is None:
        notes.append("an older ttrace wrote this trace: records that were lost cannot be noticed")
    return RankTrace(
        info=manifest.info,
        records=tuple(content.records),
        summary=content.summary,
        notes=tuple(notes),
        steps=tuple(content.steps),
    )


def _with_common_steps(ranks: dict[int, RankTrace]) -> dict[int, RankTrace]:
    """Without steps that only some ranks had room for, where all came to their end."""
    made = [trace.summary.steps for trace in ranks.values() if trace.summary is not None]
    if len(made) < len(ranks) or len(set(made)) == 1:
        return ranks
    steps = set.union(*(set(trace.steps) for trace in ranks.values()))
    common = set.intersection(*(set(trace.steps) for trace in ranks.values()))
    note = f"some ranks recorded more steps than others, and {len(steps - common)} are left out"
    return {
        rank: replace(
            trace,
            records=tuple(r for r in trace.records if r.id.step not in steps - common),
            notes=(*trace.notes, note),
        )
        for rank, trace in ranks.items()
    }


class _Content:
    """What the lines of one journal say, one after the other."""

    def __init__(self, root: Path, info: RankInfo, read: RecordLines) -> None:
        self._root = root
        self._read = read
        self._info = info
        self._ids: set[TensorId] = set()
        self._sizes: dict[str, int] = {}  # of segments that were already looked at
        self.records: list[Record] = []
        self.steps: list[int] = []
        self.summary: Summary | None = None

    def add(self, line: JournalLine) -> None:
        """Take in one line; Refused where it cannot stand here."""
        if self.summary is not None:
            raise Refused(InWords("another line"), "nothing after the end of a rank")
        if line.key == journal.RECORD:
            record = self._read.record(line.text, self._info, self._ids)
            self._require_bytes(record)
            self._ids.add(record.id)
            self.records.append(record)
            return
        value = line.value
        mark = from_dict(StepMark if line.key == journal.STEP else Summary, value)
        if isinstance(mark, StepMark):
            self.steps.append(mark.number)
        told = value.get("records", len(self.records))
        if told != len(self.records):
            raise Refused(InWords(f"{len(self.records)} before this line"), f"{told!r}", "records")
        if isinstance(mark, Summary):
            self.summary = mark

    def _require_bytes(self, record: Record) -> None:
        where = record.location
        if where is None:
            return
        if where.segment not in self._sizes:
            self._sizes[where.segment] = own_segment(self._root, record).stat().st_size
        if where.offset + where.size_bytes > self._sizes[where.segment]:
            raise too_short(self._root, record, self._sizes[where.segment])


def _require_bounded(folders: Collection[Path]) -> None:
    """Refuse journals that would not fit into memory, before the first is read."""
    paths = [folder / journal.JOURNAL for folder in folders]
    size = sum(path.stat().st_size for path in paths if path.is_file())
    if size > JOURNALS_BYTES:
        raise UnsupportedTrace(
            f"the journals of {next(iter(folders)).parent} have {size:,} bytes, this ttrace reads "
            f"{JOURNALS_BYTES:,}: record fewer steps"
        )
