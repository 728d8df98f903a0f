"""What a rank's folder takes on disk, of records that nobody has written.

Enters: the manifest and the records of a rank, in their order. Leaves: bytes and files, by the code
that makes lines, entries and manifests when they are written; places of bytes are those that a
writer would choose. Nothing is written.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ttrace.core.estimate import Volume
from ttrace.core.ids import TensorId
from ttrace.core.plain import to_dict
from ttrace.core.record import Location, RankInfo, Record, Summary
from ttrace.trace import journal
from ttrace.trace.dtypes import BYTE, safetensors_name
from ttrace.trace.fingerprint import FINGERPRINT
from ttrace.trace.line_form import line_of
from ttrace.trace.payload import FULL
from ttrace.trace.segment import ENTRY_NAME_CHARS, HEADER_BYTES, MAX_BYTES
from ttrace.trace.segment_file import ALIGNMENT, EMPTY_HEADER_BYTES, ENTRY_BYTES, entry_text
from ttrace.trace.writer import PART_ALIGNMENT, sealed_manifest

_DIGEST = "0" * 16
_OTHER_FILES = 2  # manifest and journal


class PlannedRecord(NamedTuple):
    """A record of a run to come; one without bytes of its own shares those of another, or none."""

    record: Record
    is_stored: bool
    is_whole: bool = False  # its values are kept, in any form of capture


def volume_of(
    info: RankInfo,
    steps: Sequence[Sequence[PlannedRecord]],
    summary: Summary,
    *,
    fingerprints: bool,
) -> Volume:
    """Of one rank, step by step."""
    files = _Files()
    journal_bytes, records, value_bytes = 0, 0, 0
    for number, step in enumerate(steps):
        placed = _placed(files, step, fingerprints=fingerprints)
        lines = (line_of(record) for record in placed)
        journal_bytes += sum(journal.framed_bytes(journal.RECORD, line) for line in lines)
        records += len(step)
        value_bytes += sum(FULL.size_bytes(each.record) for each in step if each.is_stored)
        mark = journal.encoded({"number": number, "records": records})
        journal_bytes += journal.framed_bytes(journal.STEP, mark)
    end = journal.encoded({"records": records, **to_dict(summary)})
    return Volume(
        ranks=1,
        records=records,
        files=files.count + _OTHER_FILES,
        segment_bytes=files.size_bytes,
        journal_bytes=journal_bytes + journal.framed_bytes(journal.END, end),
        manifest_bytes=len(sealed_manifest(info)[0]),
        value_bytes=value_bytes,
    )


def _placed(
    files: _Files, step: Iterable[PlannedRecord], *, fingerprints: bool
) -> Sequence[Record]:
    """The records of a step as its journal has them: fingerprints lie in one page, at its end."""
    described, page, whole = [], _Page(), set[TensorId]()
    known: dict[tuple[TensorId, int], int] = {}  # the number of the record that has the bytes
    places: dict[int, Location] = {}
    for number, (record, is_stored, is_whole) in enumerate(step):
        small = fingerprints and not is_whole and FINGERPRINT.takes_record(record)
        if record.location is not None and small:
            record = record.stored_as(FINGERPRINT.stored(record).described)
        described.append(record)
        if is_whole:
            whole.add(record.id)
        # Bytes of a fingerprint are not those of values that were kept before.
        if not (is_stored or (small and record.same_as in whole)):
            continue
        known[record.id, record.microbatch] = number
        if small:
            page.add(number, FINGERPRINT.stored_bytes(record))
        else:
            places[number] = files.append(record, FULL.size_bytes(record))
    places |= page.put_into(files)
    return [
        record if record.location is None else record.at(_place(record, number, known, places))
        for number, record in enumerate(described)
    ]


def _place(
    record: Record,
    number: int,
    known: dict[tuple[TensorId, int], int],
    places: dict[int, Location],
) -> Location:
    """Its own, or that of the record whose bytes it shares; of another step any will do."""
    if number in places:
        return places[number]
    other = record.id if record.same_as is None else record.same_as
    at = places.get(known.get((other, record.microbatch), known.get((other, 0), -1)))
    assert record.location is not None
    return at or record.location


class _Page:
    """Bytes that are written in one piece."""

    def __init__(self) -> None:
        self._parts: list[tuple[int, int, int]] = []  # number, start, bytes
        self._end = 0

    def add(self, number: int, size_bytes: int) -> None:
        start = self._end + -self._end % PART_ALIGNMENT
        self._parts.append((number, start, size_bytes))
        self._end = start + size_bytes

    def put_into(self, files: _Files) -> dict[int, Location]:
        if not self._parts:
            return {}
        at = files.put(self._end, "page", BYTE, (self._end,))
        return {
            number: _location(at.segment, at.offset + start, size_bytes)
            for number, start, size_bytes in self._parts
        }


class _Files:
    """Segments of a rank: when one is full, the next begins."""

    def __init__(self) -> None:
        self.count = 0
        self._closed_bytes = 0
        self._end = 0
        self._entries_bytes = 0
        self._pads = 0

    @property
    def size_bytes(self) -> int:
        return self._closed_bytes + self._end

    def append(self, record: Record, size_bytes: int) -> Location:
        stored = safetensors_name(record.dtype)
        shape = record.shape if stored else (size_bytes,)
        name = f"{record.id}@mb{record.microbatch}"[:ENTRY_NAME_CHARS]
        return self.put(size_bytes, name, stored or BYTE, shape)

    def put(self, size_bytes: int, name: str, dtype: str, shape: Sequence[int]) -> Location:
        if not self.count or not self._has_room(size_bytes):
            self._closed_bytes += self._end
            self.count += 1
            self._end, self._entries_bytes, self._pads = HEADER_BYTES, EMPTY_HEADER_BYTES, 0
        gap = -self._end % ALIGNMENT if size_bytes else 0
        if gap:
            self._enter(f"__pad{self._pads}", BYTE, (gap,), self._end, gap)
            self._pads += 1
        offset = self._end + gap
        self._enter(name, dtype, shape, offset, size_bytes)
        self._end = offset + size_bytes
        return _location(f"seg-{self.count - 1:05d}.safetensors", offset, size_bytes)

    def _has_room(self, size_bytes: int) -> bool:
        return (
            self._entries_bytes + ENTRY_BYTES <= HEADER_BYTES
            and self._end + size_bytes <= MAX_BYTES
        )

    def _enter(
        self, name: str, dtype: str, shape: Sequence[int], offset: int, size_bytes: int
    ) -> None:
        start = offset - HEADER_BYTES
        self._entries_bytes += len(entry_text(name, dtype, shape, start, size_bytes))


def _location(segment: str, offset: int, size_bytes: int) -> Location:
    return Location(segment=segment, offset=offset, size_bytes=size_bytes, xxh3=_DIGEST)
