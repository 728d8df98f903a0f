r"""The journal: one line for every record of a rank, each sealed on all lines before it.

    {"r":{"id":"step0/:loss","seq":7,"dtype":"float32","shape":[],"mb":0,"at":[...]},"x":"<xxh3-64>"}\n
    {"step":{"number":0,"records":812},"x":"<xxh3-64>"}\n
    {"end":{"records":812,"steps":1,"hooks_expected":12, ...},"x":"<xxh3-64>"}\n

Enters: records and other JSON values; leaves: lines, and back to their text. The checksum of a line
covers the bytes of its value as they stand in it (compact ASCII JSON), with the checksum of the
line before as its seed; the seed of the first is the checksum of the manifest. So a line that is
changed, missing, doubled or out of order is found before it is parsed, and the last line vouches
for all. A line without its newline was torn by a kill. Whoever reads may be given a file that a
stranger made, or that a process still writes.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Sequence
from typing import IO, Any

import xxhash

from ttrace.core.door import InWords, Refused, parse_json
from ttrace.core.layout import Layout
from ttrace.core.limits import LINE_BYTES
from ttrace.core.record import Location, PayloadRef, Record
from ttrace.errors import CorruptTrace
from ttrace.trace.store import PathOrUrl

FORMAT = "ttrace"
VERSION = 3

MANIFEST = "manifest.json"
JOURNAL = "journal.jsonl"
RANK = "rank-"  # folders of ranks begin with it

RECORD = "r"
STEP = "step"
END = "end"

_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False)
_HEADS = {key: f'{{"{key}":'.encode() for key in (RECORD, STEP, END)}
_KEYS = {head: key for key, head in _HEADS.items()}
_HEAD_OF_RECORDS = _HEADS[RECORD]  # of nearly all
_SEPARATOR = b',"x":"'
_TAIL = b'"}'
_DIGEST_CHARS = 16
_ENVELOPE_END_BYTES = len(_SEPARATOR) + _DIGEST_CHARS + len(_TAIL)


def rank_folder(rank: int) -> str:
    return f"{RANK}{rank:05d}"


def encoded(value: object) -> str:
    """A value as it stands in a line."""
    return _ENCODER.encode(value)


class Chain:
    """The lines of one journal in their order, written or read."""

    def __init__(self, seed: str) -> None:
        self._seed = int(seed, 16)

    def frame(self, *values: tuple[str, str]) -> bytes:
        """The next lines, newlines included; `accept` them once they are written."""
        lines, seed = bytearray(), self._seed
        for key, value in values:
            text = value.encode("ascii")
            digest: int = xxhash.xxh3_64_intdigest(text, seed=seed)
            lines += b"%b%b%b%016x%b" % (_HEADS[key], text, _SEPARATOR, digest, _TAIL + b"\n")
            seed = digest
        return bytes(lines)

    def accept(self, lines: bytes) -> None:
        """Go on from what `frame` gave, which is on disk now."""
        if lines:
            self._seed = int(lines[-len(_TAIL) - 1 - _DIGEST_CHARS : -len(_TAIL) - 1], 16)

    def unframe(self, line: bytes) -> tuple[str, bytes]:
        """Key and text of the next line, without its newline; Refused says what is wrong."""
        head = _HEAD_OF_RECORDS if line.startswith(_HEAD_OF_RECORDS) else _head_of(line)
        text = line[len(head) : -_ENVELOPE_END_BYTES]
        digest: int = xxhash.xxh3_64_intdigest(text, seed=self._seed)
        if not line.endswith(b"%b%016x%b" % (_SEPARATOR, digest, _TAIL)):
            raise Refused(
                InWords(f"the checksum {_parts(line)[2]}"),
                f"{digest:016x}: this line was changed, or lines before it were lost, doubled "
                "or exchanged",
                "x",
            )
        self._seed = digest
        return _KEYS[head], text


def unverified_end(line: bytes) -> Any:
    """The value of a line, newline included, that is the end of a journal; None of any other."""
    if not (line.startswith(_HEADS[END]) and line.endswith(b"\n")):
        return None
    return parse_json(_parts(line[:-1])[1])


def _parts(line: bytes) -> tuple[bytes, bytes, str]:
    """Head, text and checksum of a line of which nothing is known."""
    head, body, envelope_end = (
        _head_of(line),
        line[:-_ENVELOPE_END_BYTES],
        line[-_ENVELOPE_END_BYTES:],
    )
    if not envelope_end.startswith(_SEPARATOR) or not envelope_end.endswith(_TAIL):
        raise _no_line(line)
    found = envelope_end[len(_SEPARATOR) : -len(_TAIL)].decode("ascii", errors="replace")
    return head, body[len(head) :], found


def _head_of(line: bytes) -> bytes:
    head = next((head for head in _KEYS if line.startswith(head)), None)
    if head is None:
        raise _no_line(line)
    return head


def _no_line(line: bytes) -> Refused:
    return Refused(line[:_DIGEST_CHARS], 'a line of the form {"r":...,"x":"..."}')


_KEPT = 4096  # chosen: of a step of a large model there are about a hundred


def line_of(record: Record) -> str:
    """The text of its line, of which most parts are known already."""
    at = record.location
    where = "" if at is None else f',"at":["{at.segment}",{at.offset},{at.size_bytes},"{at.xxh3}"]'
    return (
        f'{{"id":{encoded(str(record.id))},"seq":{record.sequence},{_facts_of(record)}'
        f"{where}{_payload_of(record)}}}"
    )


def _facts_of(record: Record) -> str:
    """What stands between its number and the place of its bytes."""
    facts = _facts(
        record.dtype,
        record.shape,
        record.microbatch,
        record.recompute,
        record.layout,
        record.batch_dim,
        record.origin,
    )
    same_as = record.same_as
    return facts if same_as is None else f'{facts},"same_as":{encoded(str(same_as))}'


@functools.lru_cache(_KEPT)
def _facts(
    dtype: str,
    shape: Sequence[int],
    microbatch: int,
    recompute: bool,  # noqa: FBT001  (a cache of positions is quicker)
    layout: Layout | None,
    batch_dim: int | None,
    origin: int | None,
) -> str:
    facts: dict[str, Any] = {"dtype": dtype, "shape": list(shape), "mb": microbatch}
    if recompute:
        facts["recompute"] = True
    if layout is not None:
        facts["layout"] = layout.to_json()
    if batch_dim is not None:
        facts["batch_dim"] = batch_dim
    if origin is not None:
        facts["origin"] = origin
    return encoded(facts)[1:-1]


def _payload_of(record: Record) -> str:
    return "" if record.payload is None else _payload(record.payload)


@functools.lru_cache(_KEPT)
def _payload(payload: PayloadRef) -> str:
    return f',"payload":{encoded([payload.name, dict(payload.parameters)])}'


class LineForm:
    """The line of a record, with gaps for its step, its place in the step and that of its bytes."""

    __slots__ = ("_after_place", "_after_sequence", "_after_step")

    def __init__(self, record: Record) -> None:
        # "step0/a:output.0"  after the step: /a:output.0"
        named = encoded(str(record.id))[1 + len(f"step{record.id.step}") :]
        self._after_step = f'{named},"seq":'
        self._after_sequence = f',{_facts_of(record)},"at":["'
        self._after_place = f'"]{_payload_of(record)}}}'

    def text(self, step: int, sequence: int, at: Location) -> str:
        return (
            f'{{"id":"step{step}{self._after_step}{sequence}{self._after_sequence}'
            f'{at.segment}",{at.offset},{at.size_bytes},"{at.xxh3}{self._after_place}'
        )


class Lines:
    """The whole lines of one journal, each as its key and the text of its value.

    `stop` is where the last one that was given ends in the file, its newline included. `is_torn`
    is known when they are all read.
    """

    def __init__(self, path: PathOrUrl, rank: int, chain: Chain, file: IO[bytes]) -> None:
        self._path = path
        self._file = file
        self._rank = rank
        self._chain = chain
        self._number = 0
        self.stop = 0
        self.is_torn = False

    def __iter__(self) -> Iterator[tuple[str, bytes]]:
        unframe = self._chain.unframe
        with self._file as file:
            while text := file.readline(LINE_BYTES + 1):
                if not text.endswith(b"\n"):
                    if len(text) > LINE_BYTES:
                        too_long = InWords(f"more than {LINE_BYTES:,} bytes")
                        raise self.damaged(Refused(too_long, f"a line of at most {LINE_BYTES:,}"))
                    self.is_torn = True
                    return
                self._number += 1
                self.stop += len(text)
                try:
                    line = unframe(text[:-1])
                except Refused as refused:
                    raise self.damaged(refused) from refused
                yield line

    def damaged(self, refused: Refused) -> CorruptTrace:
        """The error that the line which was given last is damaged."""
        return CorruptTrace(
            f"{self._path}:{self._number}: the journal of rank {self._rank} is damaged at this "
            f"line: {refused}; copy the trace again or trace the run again"
        )
