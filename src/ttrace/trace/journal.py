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

RECORD = "r"
STEP = "step"
END = "end"

_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False)
_HEADS = {key: f'{{"{key}":'.encode() for key in (RECORD, STEP, END)}
_HEAD_OF_RECORDS = _HEADS[RECORD]
_SEPARATOR = b',"x":"'
_TAIL = b'"}'
_DIGEST_CHARS = 16
_ENVELOPE_END_BYTES = len(_SEPARATOR) + _DIGEST_CHARS + len(_TAIL)


def rank_folder(rank: int) -> str:
    return f"rank-{rank:05d}"


class Chain:
    """The lines of one journal in their order, written or read."""

    def __init__(self, seed: str, *, is_linked: bool = True) -> None:
        self._seed = int(seed, 16) if is_linked else 0
        self._is_linked = is_linked  # what older versions wrote is not

    def frame(self, *values: tuple[str, dict[str, Any]]) -> bytes:
        """The next lines, newlines included; `accept` them once they are written."""
        lines, seed = bytearray(), self._seed
        for key, value in values:
            text = _ENCODER.encode(value).encode("ascii")
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
        key, text, found = _parts(line)
        expected: int = xxhash.xxh3_64_intdigest(text, seed=self._seed)
        if found != f"{expected:016x}":
            raise Refused(
                InWords(f"the checksum {found}"),
                f"{expected:016x}: this line was changed, or lines before it were lost, doubled "
                "or exchanged",
                "x",
            )
        if self._is_linked:
            self._seed = expected
        return key, text


def unverified_end(line: bytes) -> Any:
    """The value of a line, newline included, that is the end of a journal; None of any other."""
    if not (line.startswith(_HEADS[END]) and line.endswith(b"\n")):
        return None
    return parse_json(_parts(line[:-1])[1])


def _parts(line: bytes) -> tuple[str, bytes, str]:
    body, envelope_end = line[:-_ENVELOPE_END_BYTES], line[-_ENVELOPE_END_BYTES:]
    key = RECORD if line.startswith(_HEAD_OF_RECORDS) else None  # nearly all
    if key is None:
        key = next((key for key, head in _HEADS.items() if line.startswith(head)), None)
    if key is None or not envelope_end.startswith(_SEPARATOR) or not envelope_end.endswith(_TAIL):
        raise Refused(line[:_DIGEST_CHARS], 'a line of the form {"r":...,"x":"..."}')
    found = envelope_end[len(_SEPARATOR) : -len(_TAIL)].decode("ascii", errors="replace")
    return key, body[len(_HEADS[key]) :], found
