r"""The journal: one line for every record of a rank, each sealed on all lines before it.

    {"r":{"id":"step0/:loss","seq":7,"dtype":"float32","shape":[],"mb":0,"at":[...]},"x":"<xxh3-64>"}\n
    {"step":{"number":0,"records":812},"x":"<xxh3-64>"}\n
    {"end":{"records":812,"steps":1,"hooks_expected":12, ...},"x":"<xxh3-64>"}\n

Enters: a JSON value; leaves: a line, and back to its text. The checksum of a line covers the bytes
of its value as they stand in it (compact ASCII JSON), with the checksum of the line before as its
seed; the seed of the first is the checksum of the manifest. So a line that is changed, missing,
doubled or out of order is found before it is parsed, and the last line vouches for all. A line
without its newline was torn by a kill.
"""

from __future__ import annotations

import json
from typing import Any

import xxhash

from ttrace.core.door import parse_json
from ttrace.core.refused import InWords, Refused

FORMAT = "ttrace"
VERSION = 3
ONCE_VERSIONS = (1, 2)  # whose lines have checksums that know nothing of each other

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


def framed_bytes(key: str, value: str) -> int:
    """How long the line of a value is, its newline included."""
    return len(_HEADS[key]) + len(value) + _ENVELOPE_END_BYTES + len("\n")


class Chain:
    """The lines of one journal in their order, written or read."""

    def __init__(self, seed: str, *, is_linked: bool = True) -> None:
        self._seed = int(seed, 16) if is_linked else 0
        self._is_linked = is_linked  # what older versions wrote is not

    def frame(self, *values: tuple[str, str]) -> bytes:
        """The next lines, newlines included; `accept` them once they are written."""
        lines, seed = bytearray(), self._seed
        for key, value in values:
            text = value.encode("ascii")
            digest: int = xxhash.xxh3_64_intdigest(text, seed=seed)
            lines += b"%b%b%b%016x%b" % (_HEADS[key], text, _SEPARATOR, digest, _TAIL + b"\n")
            seed = digest if self._is_linked else 0
        return bytes(lines)

    def accept(self, lines: bytes) -> None:
        """Go on from what `frame` gave, which is on disk now."""
        if self._is_linked and lines:
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
        if self._is_linked:
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
