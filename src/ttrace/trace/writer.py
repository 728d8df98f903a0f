"""Writing a trace: what one rank puts on disk while it trains.

    TRACE/rank-00003/manifest.json          who this rank is; written first, in one move
                     journal.jsonl          a line for every record, after its bytes are written
                     seg-00000.safetensors  the bytes

Enters: records with their CPU tensors. Leaves: records that know where their bytes are. A killed
process loses at most the record it was writing. It must not know hooks, frameworks or devices.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from ttrace.core.door import to_dict
from ttrace.core.record import Location, RankInfo, Record, Summary
from ttrace.errors import UsageError
from ttrace.trace import journal
from ttrace.trace.dtypes import dtype_name
from ttrace.trace.journal import line_of
from ttrace.trace.manifest import seal
from ttrace.trace.payload import FULL, Payload
from ttrace.trace.progress import resumable
from ttrace.trace.segment import HEADER_BYTES, Reserved, SegmentWriter

_PAGE = "page"  # the name of the bytes of many records; a number follows it
PART_ALIGNMENT = 16  # chosen: the widest number is 8 bytes long
_GAP = memoryview(bytes(PART_ALIGNMENT))


class PagePart(NamedTuple):
    """Bytes of one record, and their xxh3-64."""

    data: memoryview
    xxh3: str


class TraceWriter:
    """The folder of one rank in the trace `folder`. Hooks may call it from several threads.

    `resume`: a run that was killed goes on. All steps that it had ended stay, what it had written
    of the one after them is cut off; where there is nothing yet, it is a new trace. `max_bytes`:
    more are not written, and OSError says so.
    """

    def __init__(
        self,
        folder: Path,
        info: RankInfo,
        *,
        resume: bool = False,
        max_bytes: int | None = None,
    ) -> None:
        self.folder = folder / journal.rank_folder(info.rank)
        self._lock = threading.Lock()
        self._room = _Room(max_bytes)
        found = resumable(self.folder, info) if resume else None
        self.steps = () if found is None else found.steps  # that were recorded before
        self._is_new = found is None
        self._records = 0 if found is None else found.records
        if found is None:
            self._fd = _claim(self.folder, info.rank)
        else:
            self._fd = os.open(self.folder / journal.JOURNAL, os.O_WRONLY | os.O_APPEND)
        try:
            if found is None:
                self._segments = SegmentWriter(self.folder)
                self._chain = journal.Chain(_write_manifest(self.folder, info))
            else:
                os.ftruncate(self._fd, found.stop)
                self._segments = SegmentWriter(self.folder, first=found.segments)
                self._chain = found.chain
            self._room.take(sum(path.stat().st_size for path in self.folder.iterdir()))
        except BaseException:
            self.withdraw()
            raise
        _CLAIMED.add((os.getpid(), self.folder))

    @property
    def is_limited(self) -> bool:
        """Whether there is a `max_bytes`."""
        return self._room.is_limited

    @property
    def has_room(self) -> bool:
        """Whether another step like the largest before fits into `max_bytes`."""
        return self._room.is_left

    @property
    def size_bytes(self) -> int:
        """Of all files, as far as they are written."""
        return self._room.taken

    def write(self, record: Record, tensor: torch.Tensor, payload: Payload = FULL) -> Record:
        """Write `tensor` in the form of `payload`, then the line; the record with its location."""
        if record.shape != tuple(tensor.shape) or record.dtype != dtype_name(tensor.dtype):
            raise UsageError(
                f"the record of {record.id} says {record.dtype} {record.shape}, its tensor is "
                f"{dtype_name(tensor.dtype)} {tuple(tensor.shape)}"
            )
        record, made = payload.encode(record, tensor)
        data = made() if callable(made) else made
        reserved = self.reserve(data.nbytes)
        try:
            reserved.write(data)
        except BaseException:
            self.give_back(reserved)
            raise
        located = self.keep(record, reserved)
        self.note(located)
        return located

    def reserve(self, size_bytes: int) -> Reserved:
        """Room for the bytes of a record, which come in pieces and from any thread."""
        with self._lock:
            self._require_open()
            self._room.require(size_bytes + HEADER_BYTES)
            before = self._segments.size_bytes
            reserved = self._segments.reserve(size_bytes)
            self._room.take(self._segments.size_bytes - before)
            return reserved

    def keep(self, record: Record, reserved: Reserved) -> Record:
        """All of its bytes are written: the record with its location, for `note`."""
        with self._lock:
            self._require_open()
            location = self._segments.keep(
                reserved,
                dtype=record.dtype if record.payload is None else None,
                shape=record.shape,
                name=f"{record.id}@mb{record.microbatch}",
            )
        return record.at(location)

    def append_all(self, parts: Sequence[PagePart]) -> list[Location]:
        """Write the bytes of many small records in one piece: where each is, for `note`."""
        if not parts:
            return []
        places, pieces, end = [], [], 0
        for part in parts:
            gap = -end % PART_ALIGNMENT
            if gap:
                pieces.append(_GAP[:gap])
            places.append(end + gap)
            pieces.append(part.data)
            end += gap + part.data.nbytes
        reserved = self.reserve(end)
        try:
            reserved.write_all(pieces)
        except BaseException:
            self.give_back(reserved)
            raise
        with self._lock:
            self._require_open()
            at = self._segments.keep(reserved, dtype=None, shape=(), name=_PAGE)
        return [
            Location(
                segment=at.segment,
                offset=at.offset + place,
                size_bytes=part.data.nbytes,
                xxh3=part.xxh3,
            )
            for place, part in zip(places, parts, strict=True)
        ]

    def give_back(self, reserved: Reserved) -> None:
        with self._lock:
            before = self._segments.size_bytes
            self._segments.give_back(reserved)
            self._room.take(self._segments.size_bytes - before)

    def note(self, *records: Record) -> None:
        """Journal records whose bytes are written, by themselves or others, or that have none.

        All of them, or none where that fails.
        """
        self.note_lines(*map(line_of, records))

    def note_lines(self, *lines: str) -> None:
        """The same of records whose lines are made already."""
        with self._lock:
            self._require_open()
            self._append(*((journal.RECORD, line) for line in lines))
            self._records += len(lines)

    def end_step(self, number: int) -> None:
        """Mark that all of a step is recorded: a run that is killed later can go on from here."""
        with self._lock:
            self._require_open()
            mark = {"number": number, "records": self._records}
            self._append((journal.STEP, journal.encoded(mark)))
            self._room.end_step()

    def close(self, summary: Summary) -> None:
        """Seal the open segment and end the journal: from here on the trace is complete."""
        with self._lock:
            self._require_open()
            try:
                self._segments.seal()
                end = {"records": self._records, **to_dict(summary)}
                self._append((journal.END, journal.encoded(end)))
            finally:
                fd, self._fd = self._fd, -1
                os.close(fd)

    def withdraw(self) -> None:
        """Leave no trace of this rank, as long as no run recorded anything."""
        with self._lock:
            self._require_open()
            fd, self._fd = self._fd, -1
            os.close(fd)
            _CLAIMED.discard((os.getpid(), self.folder))
            if self._is_new and not self._records:
                for name in (journal.MANIFEST, f"{journal.MANIFEST}.tmp", journal.JOURNAL):
                    (self.folder / name).unlink(missing_ok=True)

    def abandon(self) -> None:
        """Close the files as they are: a journal without an end is that of a run that broke off."""
        with self._lock:
            fd, self._fd = self._fd, -1
            if fd >= 0:
                os.close(fd)
            self._segments.abandon()

    def _require_open(self) -> None:
        if self._fd < 0:
            raise UsageError(f"the trace in {self.folder} is closed: nothing can be added to it")

    def _append(self, *values: tuple[str, str]) -> None:
        lines = self._chain.frame(*values)
        written = 0
        try:
            written = os.write(self._fd, lines)
            if written < len(lines):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.folder))
            self._room.take(written)
            self._chain.accept(lines)
        except BaseException:
            self._cut_off(written)
            raise

    def _cut_off(self, size_bytes: int) -> None:
        """Take torn lines back, or else let nothing follow them: only the last may be torn."""
        try:
            os.ftruncate(self._fd, os.fstat(self._fd).st_size - size_bytes)
        except OSError:
            fd, self._fd = self._fd, -1
            with contextlib.suppress(OSError):
                os.close(fd)


class _Room:
    """What one rank may write; without a limit there is always room."""

    def __init__(self, most_bytes: int | None = None) -> None:
        self._most = most_bytes
        self.taken = 0
        self._before = 0  # taken when the last step ended
        self._largest = 0  # that a step took

    def take(self, size_bytes: int) -> None:
        self.taken += size_bytes

    def require(self, size_bytes: int) -> None:
        """OSError where so many more bytes are too many."""
        if self._most is not None and self.taken + size_bytes > self._most:
            told = f"{os.strerror(errno.EDQUOT)}: --max-bytes leaves {self._most:,} to this rank"
            raise OSError(errno.EDQUOT, told)

    def end_step(self) -> None:
        self._largest = max(self._largest, self.taken - self._before)
        self._before = self.taken

    @property
    def is_limited(self) -> bool:
        return self._most is not None

    @property
    def is_left(self) -> bool:
        """Whether another step like the largest fits."""
        return self._most is None or self.taken + self._largest <= self._most


_CLAIMED: set[tuple[int, Path]] = set()  # folders that a process writes into, or did


def _claim(folder: Path, rank: int) -> int:
    """The journal's file descriptor; creating that file is what makes the folder ours."""
    if (os.getpid(), folder) in _CLAIMED:  # it may have been copied away since then
        raise UsageError(
            "this process is traced already: call ttrace.attach once, with everything that is "
            'trained, as ttrace.attach({"generator": g, "critic": c}, [optimizer_g, optimizer_c])'
        )
    folder.mkdir(parents=True, exist_ok=True)
    if not any(folder.iterdir()):
        with contextlib.suppress(FileExistsError):
            return os.open(
                folder / journal.JOURNAL,
                os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND,
                0o666,
            )
    raise UsageError(
        f"{folder} already holds files, and a trace is never overwritten: choose another folder or "
        f"remove this one; if the run is new, two of its processes may both claim rank {rank}"
    )


def sealed_manifest(info: RankInfo) -> tuple[bytes, str]:
    """The text of a manifest, and its checksum."""
    data = {"format": journal.FORMAT, "version": journal.VERSION, **info.to_json()}
    return seal(data, indent=1)


def _write_manifest(folder: Path, info: RankInfo) -> str:
    """Its checksum."""
    text, digest = sealed_manifest(info)
    temporary = folder / f"{journal.MANIFEST}.tmp"
    temporary.write_bytes(text)
    temporary.replace(folder / journal.MANIFEST)
    return digest
