"""Reading a trace: what all ranks wrote, whether they were closed or killed.

Enters: a folder that a stranger may have made. Leaves: records that were checked against the files
they point into: what passed here is trusted by all stages, and Refused says which fields of a line
do not fit together. The journal is the truth; the headers of segments are only for foreign readers.
Nothing is executed, and nothing outside of the folder is read.

Ranks that hold the same part of a tensor write the same line but for the place of its bytes, and
all layers write lines that differ in names besides: what is alike in them is read once.
"""

from __future__ import annotations

import functools
import itertools
import math
import re
from collections.abc import Container, Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

from ttrace.core.door import InWords, Refused, from_dict, parse_json
from ttrace.core.ids import TensorId, roots_of
from ttrace.core.layout import Layout, Runs
from ttrace.core.limits import ELEMENTS, EXAMPLES_BYTES, JOURNALS_BYTES
from ttrace.core.record import SEGMENT, RankInfo, Record, StepMark, Summary
from ttrace.core.rows import RecordRows, RecordTable, RowPlace
from ttrace.errors import CorruptTrace, TraceNotFound, TTraceError, UnsupportedTrace
from ttrace.trace import journal
from ttrace.trace.dtypes import is_readable
from ttrace.trace.files import TraceFiles, files_of, rank_folders
from ttrace.trace.journal import Lines
from ttrace.trace.manifest import read_manifest
from ttrace.trace.payloads import payload_of
from ttrace.trace.spans import segment_size, too_short
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


# How the writer puts what differs between lines that are alike: the place of a record's bytes, its
# name and number, and the name of the same tensor. Names that need no escape are as they stand.
_NAME = rb'"([ !#-\[\]-~]+)"'
_NUMBER = rb"(0|[1-9][0-9]{0,17})"
_PLACE = re.compile(
    rb',"at":\["(%b)",%b,%b,"([0-9a-f]{16})"\]' % (SEGMENT.encode(), _NUMBER, _NUMBER)
)
_NAMED = re.compile(rb'{"id":%b,"seq":%b,' % (_NAME, _NUMBER))
_SAME_AS = re.compile(rb',"same_as":' + _NAME)
# What stands once in a line that is put so.
_ONCE = re.compile(rb'"id"|"seq"|"at"|"same_as"|\\')
_IDS_KEPT = 1 << 17  # chosen: those of ten steps of a large model; all runs of a check share them


class RecordLines:
    """Makes rows of the lines of all ranks of a trace."""

    def __init__(self) -> None:
        self.table = RecordTable()
        self._known: dict[bytes, int] = {}  # examples by their text without the place of bytes
        self._alike: dict[object, Record] = {}  # by that without their names, too
        self._segments: dict[bytes, int] = {}
        self._kept_bytes = 0

    def add(self, text: bytes, info: RankInfo, earlier: Container[TensorId]) -> Added:
        """Add the row of a line; `earlier` are the ids of the same rank before it."""
        match = _PLACE.search(text)
        place = None if match is None else self._place(match)
        around = text if match is None else b"%b\0%b" % (text[: match.start()], text[match.end() :])
        number = self._known.get(around)
        if number is None:
            example = self._example(text, around, place, info, earlier)
            if example is None:
                return self._by_itself(text, info, earlier)
            number = self._keep(around, example)
        example = self.table.examples[number]
        if not _is_sound_like(example, match, earlier):
            return self._by_itself(text, info, earlier)
        self.table.add(number, info.rank, place)
        return Added(example, place)

    def _example(
        self,
        text: bytes,
        around: bytes,
        place: RowPlace | None,
        info: RankInfo,
        earlier: Container[TensorId],
    ) -> Record | None:
        """A record that stands for all lines with this text; None where it is only for itself."""
        names = _names(around)
        if names is None:
            return None
        known = self._alike.get(names.alike)
        if known is None:
            known = _sound(text, info, earlier)
            if not names.are_of(known) or self.table.place_of(known) != place:
                return None
            self._alike[names.alike] = known
        return replace(known, id=names.id, sequence=names.sequence, same_as=names.same_as)

    def _keep(self, around: bytes, example: Record) -> int:
        self._kept_bytes += len(around)
        if self._kept_bytes > EXAMPLES_BYTES:
            raise UnsupportedTrace(
                f"lines of journals that differ in more than the place of bytes have over "
                f"{EXAMPLES_BYTES:,} bytes, which is what this ttrace reads: record fewer steps"
            )
        number = self._known[around] = self.table.add_example(example)
        return number

    def _by_itself(self, text: bytes, info: RankInfo, earlier: Container[TensorId]) -> Added:
        """A line as if there were no other."""
        record = _sound(text, info, earlier)
        place = self.table.place_of(record)
        number = self._keep(text, record)
        self.table.add(number, info.rank, place)
        return Added(record, place)

    def _place(self, match: re.Match[bytes]) -> RowPlace:
        name, offset, _, digest = match.groups()
        segment = self._segments.get(name)
        if segment is None:
            segment = self._segments[name] = self.table.segment(name.decode("ascii"))
        return RowPlace(segment, int(offset), int(digest, 16))


class Added(NamedTuple):
    """What a line says: an example that is like it, and the place of its own bytes."""

    example: Record
    place: RowPlace | None

    @property
    def stop(self) -> int:
        """Where its bytes end in their segment."""
        at = self.example.location
        return 0 if at is None or self.place is None else self.place.offset + at.size_bytes


class _Names(NamedTuple):
    """What a line says of its tensor's name, and all that it says besides."""

    id: TensorId
    sequence: int
    same_as: TensorId | None
    alike: object

    def are_of(self, record: Record) -> bool:
        """Whether they are what the record says: other data may look like names, too."""
        found = record.id, record.sequence, record.same_as
        return found == (self.id, self.sequence, self.same_as)


def _names(around: bytes) -> _Names | None:
    """None where the writer would not have put it so: it has to be looked at by itself."""
    named, same_as = _NAMED.match(around), _SAME_AS.search(around)
    if named is None:
        return None
    rest = around[named.end() :]
    if same_as is not None:
        rest = b"%b\1%b" % (around[named.end() : same_as.start()], around[same_as.end() :])
    if _ONCE.search(rest):
        return None
    try:
        id_, other = _id(named[1]), None if same_as is None else _id(same_as[1])
    except (TTraceError, ValueError):
        return None
    return _Names(id_, int(named[2]), other, (id_.kind, rest))


@functools.lru_cache(_IDS_KEPT)
def _id(text: bytes) -> TensorId:
    return TensorId.parse(text.decode("ascii"))


def _sound(text: bytes, info: RankInfo, earlier: Container[TensorId]) -> Record:
    record = from_dict(Record, parse_json(text), rank=info.rank)
    require_sound(record, info, earlier)
    return record


def _is_sound_like(
    example: Record, match: re.Match[bytes] | None, earlier: Container[TensorId]
) -> bool:
    """Whether nothing that may differ between two lines that are alike makes one unsound."""
    if example.origin is not None:  # a number of a rank
        return False
    if match is None or example.location is None:
        return match is None and example.location is None
    is_known = example.same_as is None or example.same_as in earlier
    return is_known and int(match[3]) == example.location.size_bytes


def require_sound(record: Record, info: RankInfo, earlier: Container[TensorId]) -> None:
    """Refuse a record of this rank that contradicts itself, or those before it."""
    # float32 [4, 8], layout [0:4, 8:16] of (4, 16), batch_dim 0, at=[..., 128, ...] in a world of 2
    #     sound: the layout is 4 x 8 here, 128 = 4 * 8 * 4 bytes, and dim 0 is one of 2
    #     refused: layout [0:4, 0:4], batch_dim 2, origin 2, 64 bytes, or nothing at "at" unless it
    #     is a gradient of an activation that is the same object as another tensor
    if not is_readable(record.dtype):
        raise Refused(record.dtype, "a dtype of this torch whose values are numbers", "dtype")
    _require_size(record.shape, "shape")
    if record.origin is not None and record.origin >= info.world_size:
        raise Refused(record.origin, f"one of {info.world_size} ranks", "origin")
    if record.layout is not None:
        _require_layout(record.layout, record.shape)
    logical = record.shape if record.layout is None else record.layout.shape
    if record.batch_dim is not None and record.batch_dim >= max(1, len(logical)):
        raise Refused(record.batch_dim, f"one of {len(logical)} dims", "batch_dim")
    if record.location is None:
        if record.same_as is None or not record.id.kind.is_gradient_of_activation:
            place = "the place of its bytes; only a gradient may be stored with another"
            raise Refused(InWords("nothing"), place, "at")
        return
    if record.same_as is not None and record.same_as not in earlier:
        raise Refused(str(record.same_as), "the id of an earlier record", "same_as")
    try:
        expected = payload_of(record).size_bytes(record)
    except (ValueError, LookupError, TypeError) as error:  # of a payload that trusts its numbers
        raise Refused(InWords(str(error)), "parameters of this payload", "payload") from None
    if record.location.size_bytes != expected:
        raise Refused(
            record.location.size_bytes,
            f"{expected} bytes for {record.dtype} {list(record.shape)}",
            "at.size_bytes",
        )


def _require_layout(layout: Layout, local: tuple[int, ...]) -> None:
    _require_size(layout.shape, "layout.shape")
    if layout.local_shape != local:
        raise Refused(
            InWords(f"{layout}, a part of shape {list(layout.local_shape)}"),
            f"one of {list(local)}, as the tensor has",
            "layout",
        )
    for dim, runs in enumerate(layout.runs):
        if len(runs) > 1 and _meets_itself(runs):
            raise Refused(
                InWords("indices that come twice"), "each index once", f"layout.runs[{dim}]"
            )


def _meets_itself(runs: Runs) -> bool:
    ordered = sorted((run.start, run.start + run.length) for run in runs if run.start is not None)
    return any(stop > start for (_, stop), (start, _) in itertools.pairwise(ordered))


def _require_size(shape: tuple[int, ...], where: str) -> None:
    if math.prod(max(1, size) for size in shape) > ELEMENTS:
        raise Refused(list(shape), f"at most {ELEMENTS:,} elements", where)
