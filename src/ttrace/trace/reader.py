"""Reading a trace: what all ranks wrote, whether they were closed or killed.

Enters: a folder that a stranger may have made. Leaves: records that were checked against the files
they point into. The journal is the truth; the headers of segments are only for foreign readers.
Nothing is executed, and nothing outside of the folder is read.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass, replace

from ttrace.core.door import from_dict, parse_json
from ttrace.core.ids import TensorId, roots_of
from ttrace.core.limits import JOURNALS_BYTES
from ttrace.core.record import RankInfo, StepMark, Summary
from ttrace.core.refused import InWords, Refused
from ttrace.core.rows import RecordRows
from ttrace.errors import CorruptTrace, TraceNotFound, UnsupportedTrace
from ttrace.trace import journal
from ttrace.trace.files import TraceFiles, files_of, rank_folders
from ttrace.trace.lines import Lines
from ttrace.trace.manifest import read_manifest
from ttrace.trace.records import Added, RecordLines
from ttrace.trace.segment_bytes import segment_size, too_short
from ttrace.trace.store import PathOrUrl


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTrace:
    """What one rank wrote. `summary` is None when the rank did not end well."""

    info: RankInfo
    records: RecordRows
    summary: Summary | None = None
    notes: tuple[str, ...] = ()
    steps: tuple[int, ...] = ()  # that were recorded to their end


@dataclass(frozen=True, kw_only=True)
class Trace:
    """One traced run: all of its ranks that left something on disk."""

    path: PathOrUrl
    ranks: dict[int, RankTrace]

    @classmethod
    def open(cls, path: PathOrUrl | str) -> Trace:
        """Read all journals, and check every record against the file that holds its bytes."""
        files = files_of(path)
        root, found = files.place, _ranks_of(files)
        _require_bounded(files, found)
        files.read_soon(name for rank in found for name in (_manifest(rank), _journal(rank)))
        read = RecordLines()
        ranks = {rank: _read_rank(files, rank, read) for rank in found}
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

    @functools.cached_property
    def steps(self) -> tuple[int, ...]:
        return tuple(sorted({id_.step for id_ in self.by_id()}))

    @functools.cached_property
    def roots(self) -> frozenset[str]:
        """The paths of the models: a single one has an empty path."""
        return roots_of(m.path for trace in self.ranks.values() for m in trace.info.modules)

    @functools.cached_property
    def codes(self) -> dict[str, list[str]] | None:
        """The dtypes of codes that modules make; None where a rank was not watched for them."""
        summaries = [found.summary for _, found in sorted(self.ranks.items()) if found.summary]
        if not summaries or any(summary.quantising is None for summary in summaries):
            return None
        made: dict[str, dict[str, None]] = {}
        for each in (each for summary in summaries for each in summary.quantising or ()):
            made.setdefault(each.module, {}).update(dict.fromkeys(each.codes))
        return {module: list(codes) for module, codes in made.items()}

    @functools.cached_property
    def records(self) -> RecordRows:
        """Those of all ranks."""
        return RecordRows.joined([trace.records for _, trace in sorted(self.ranks.items())])

    def by_id(self) -> dict[TensorId, RecordRows]:
        """The records of every logical tensor, by rank and then in the order of writing."""
        return self._index

    @functools.cached_property
    def _index(self) -> dict[TensorId, RecordRows]:
        return self.records.by_id()


def devices_of(path: PathOrUrl) -> frozenset[str]:
    """What the ranks of a trace computed on."""
    files = files_of(path)
    ranks = _ranks_of(files)
    files.read_soon(map(_manifest, ranks))
    return frozenset(read_manifest(files, rank).info.device for rank in ranks)


def _ranks_of(files: TraceFiles) -> list[int]:
    """All that have a folder."""
    ranks = list(rank_folders(files))
    if not ranks:
        raise TraceNotFound(
            f"{files.place} is not a trace: expected folders {journal.rank_folder(0)} and on, each "
            f"with a {journal.MANIFEST} and a {journal.JOURNAL}; make a trace with `ttrace run`"
        )
    return ranks


def _manifest(rank: int) -> str:
    return f"{journal.rank_folder(rank)}/{journal.MANIFEST}"


def _journal(rank: int) -> str:
    return f"{journal.rank_folder(rank)}/{journal.JOURNAL}"


def _read_rank(files: TraceFiles, rank: int, read: RecordLines) -> RankTrace:
    manifest = read_manifest(files, rank)
    file = files.open(_journal(rank), holds=f"the records of rank {rank}")
    lines = Lines(files.place / _journal(rank), rank, manifest.chain(), file)
    content = _Content(files, manifest.info, read)
    for key, text in lines:
        try:
            content.add(key, text)
        except Refused as refused:
            raise lines.damaged(refused) from refused
    if lines.is_torn and content.summary is not None:
        raise lines.damaged(Refused(InWords("more bytes"), "nothing after the end of a rank"))
    notes = ["the last journal line was torn and is ignored"] if lines.is_torn else []
    if manifest.digest is None:
        notes.append("an older ttrace wrote this trace: records that were lost cannot be noticed")
    return RankTrace(
        info=manifest.info,
        records=content.rows(),
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
    common = frozenset.intersection(*(frozenset(trace.steps) for trace in ranks.values()))
    note = f"some ranks recorded more steps than others, and {len(steps - common)} are left out"
    return {
        rank: replace(
            trace,
            records=trace.records.of_steps(common),
            notes=(*trace.notes, note),
        )
        for rank, trace in ranks.items()
    }


class _Content:
    """What the lines of one journal say, one after the other."""

    def __init__(self, files: TraceFiles, info: RankInfo, read: RecordLines) -> None:
        self._files = files
        self._read = read
        self._info = info
        self._ids: set[TensorId] = set()
        self._sizes: dict[int, int] = {}  # of segments that were already looked at
        self._start = len(read.table)
        self.steps: list[int] = []
        self.summary: Summary | None = None

    def add(self, key: str, text: bytes) -> None:
        """Take in one line; Refused where it cannot stand here."""
        if self.summary is not None:
            raise Refused(InWords("another line"), "nothing after the end of a rank")
        if key == journal.RECORD:
            added = self._read.add(text, self._info, self._ids)
            self._require_bytes(added)
            self._ids.add(added.example.id)
            return
        value = parse_json(text)
        mark = from_dict(StepMark if key == journal.STEP else Summary, value)
        if isinstance(mark, StepMark):
            self.steps.append(mark.number)
        count = len(self._read.table) - self._start
        told = value.get("records", count)
        if told != count:
            raise Refused(InWords(f"{count} before this line"), f"{told!r}", "records")
        if isinstance(mark, Summary):
            self.summary = mark

    def rows(self) -> RecordRows:
        return self._read.table.rows(self._start)

    def _require_bytes(self, added: Added) -> None:
        if added.place is None:
            return
        segment = added.place.segment
        if segment not in self._sizes:
            self._sizes[segment] = segment_size(self._files, self._read.table.last())
        if added.stop > self._sizes[segment]:
            raise too_short(self._files.place, self._read.table.last(), self._sizes[segment])


def _require_bounded(files: TraceFiles, ranks: Iterable[int]) -> None:
    """Refuse journals that would not fit into memory, before the first is read."""
    names = filter(files.has, map(_journal, ranks))
    size = sum(files.size(name, holds="records") for name in names)
    if size > JOURNALS_BYTES:
        raise UnsupportedTrace(
            f"the journals of {files.place} have {size:,} bytes, this ttrace reads "
            f"{JOURNALS_BYTES:,}: record fewer steps"
        )
