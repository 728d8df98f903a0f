"""Reading a trace: what all ranks wrote, whether they were closed or killed.

Enters: a folder that a stranger may have made. Leaves: records that were checked against the files
they point into. The journal is the truth; the headers of segments are only for foreign readers.
Nothing is executed, and nothing outside of the folder is read.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ttrace.core.ids import TensorId, roots_of
from ttrace.core.plain import from_dict
from ttrace.core.record import RankInfo, Record, Summary
from ttrace.errors import CorruptTrace, TraceNotFound, TTraceError, UnsupportedTrace
from ttrace.trace import journal
from ttrace.trace.payload import payload_of
from ttrace.trace.spans import own_file, own_segment, too_short

_VERSIONS = (journal.VERSION, journal.VERSION_WITH_PAYLOADS)
_RANK_FOLDER = re.compile(r"rank-([0-9]{5,9})")
_MAX_WORLD_SIZE = 1 << 24  # chosen: above any cluster, while all missing ranks can still be listed

# What a broken value raises on its way back to an object: bad types, missing keys, refused layouts.
_MALFORMED = (
    KeyError,
    TypeError,
    ValueError,
    IndexError,
    AttributeError,
    RecursionError,
    TTraceError,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTrace:
    """What one rank wrote. `summary` is None when the rank did not end well."""

    info: RankInfo
    records: tuple[Record, ...]
    summary: Summary | None = None
    notes: tuple[str, ...] = ()


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
        ranks = {rank: _read_rank(root, folder, rank) for rank, folder in folders.items()}
        sizes = {rank: trace.info.world_size for rank, trace in ranks.items()}
        if len(set(sizes.values())) > 1:
            raise CorruptTrace(
                f"the ranks of {root} come from different runs: their world sizes are {sizes}; "
                f"trace every run into a folder of its own"
            )
        return cls(path=root, ranks=ranks)

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
        _read_manifest(path, folder / journal.MANIFEST, rank).device for rank, folder in found
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


def _read_rank(root: Path, folder: Path, rank: int) -> RankTrace:
    info = _read_manifest(root, folder / journal.MANIFEST, rank)
    path = own_file(root, folder / journal.JOURNAL, holds=f"the records of rank {rank}")
    notes: list[str] = []
    records: list[Record] = []
    summary: Summary | None = None
    sizes: dict[str, int] = {}
    for number, line in _lines(path, notes):
        if summary is not None:
            raise CorruptTrace(f"{path}:{number}: expected nothing after the end of rank {rank}")
        try:
            key, value = journal.unframe(line)
            if key == journal.END:
                summary = from_dict(Summary, value)
                continue
            record = Record.from_json(value, rank=rank)
            _check_fields(record)
        except UnsupportedTrace:
            raise
        except _MALFORMED as error:
            raise CorruptTrace(
                f"{path}:{number}: the journal of rank {rank} is damaged at this line: "
                f"{_reason(error)}; copy the trace again or trace the run again"
            ) from error
        _check_place(root, record, sizes)
        records.append(record)
    return RankTrace(info=info, records=tuple(records), summary=summary, notes=tuple(notes))


def _read_manifest(root: Path, path: Path, rank: int) -> RankInfo:
    own_file(root, path, holds=f"what rank {rank} says of itself")
    try:
        data: dict[str, Any] = json.loads(path.read_bytes())
        format_, version = data["format"], data["version"]
        if format_ == journal.FORMAT and version in _VERSIONS:
            info = RankInfo.from_json(data)
            size = info.world_size
            if info.rank != rank or type(size) is not int or not rank < size <= _MAX_WORLD_SIZE:
                raise ValueError(f"it says rank {info.rank} of {info.world_size}")
            return info
    except _MALFORMED as error:
        raise CorruptTrace(
            f"{path} is not the manifest of rank {rank}: {_reason(error)}; copy the trace again or "
            f"trace the run again"
        ) from error
    if format_ != journal.FORMAT:
        raise UnsupportedTrace(
            f"{path} has the format {format_!r}, expected {journal.FORMAT!r}: this folder was not "
            f"written by ttrace"
        )
    raise UnsupportedTrace(
        f"{path} has version {version!r} of the trace format, this ttrace reads versions "
        f"{' and '.join(map(str, _VERSIONS))}: upgrade ttrace to read it"
    )


def _lines(path: Path, notes: list[str]) -> Iterator[tuple[int, bytes]]:
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if line.endswith(b"\n"):
                yield number, line[:-1]
            else:
                notes.append("the last journal line was torn and is ignored")


def _check_fields(record: Record) -> None:
    numbers = [record.sequence, record.microbatch, *record.shape]
    where = record.location
    if where is not None:
        numbers += [where.offset, where.size_bytes]
    if any(type(number) is not int or number < 0 for number in numbers):
        raise ValueError(f"{record.id} needs whole numbers from 0 on, found {numbers}")
    if where is None:
        return
    if not isinstance(where.segment, str):
        raise ValueError(f"{record.id} needs the name of a file, found {where.segment!r}")
    expected = payload_of(record).size_bytes(record)
    if where.size_bytes != expected:
        raise ValueError(
            f"{record.id} has {where.size_bytes} bytes, but {record.dtype} {record.shape} takes "
            f"{expected}"
        )


def _check_place(root: Path, record: Record, sizes: dict[str, int]) -> None:
    """The bytes must be there. `sizes` remembers the segments that were already looked at."""
    where = record.location
    if where is None:
        return
    if where.segment not in sizes:
        sizes[where.segment] = own_segment(root, record).stat().st_size
    if where.offset + where.size_bytes > sizes[where.segment]:
        raise too_short(root, record, sizes[where.segment])


def _reason(error: BaseException) -> str:
    return f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else str(error)
