"""Records of the lines of journals, and what they must be beyond the types of their fields.

Enters: the text of a record as the journal has it, and what came before it. Leaves: a row of the
table of all records; Refused says which of its fields do not fit together. What passed here is
trusted by all stages. Ranks that hold the same part of a tensor write the same line but for the
place of its bytes, and all layers write lines that differ in names besides: what is alike in them
is read once.
"""

from __future__ import annotations

import functools
import itertools
import math
import re
from collections.abc import Container
from dataclasses import replace
from typing import NamedTuple

from ttrace.core.door import from_dict, parse_json
from ttrace.core.ids import TensorId
from ttrace.core.layout import Layout, Runs
from ttrace.core.limits import ELEMENTS, EXAMPLES_BYTES
from ttrace.core.record import SEGMENT, RankInfo, Record
from ttrace.core.refused import InWords, Refused
from ttrace.core.rows import RecordTable, RowPlace
from ttrace.errors import TTraceError, UnsupportedTrace
from ttrace.trace.dtypes import is_readable
from ttrace.trace.payloads import payload_of

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
