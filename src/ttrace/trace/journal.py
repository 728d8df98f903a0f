r"""The journal: one line for every record of a rank, each with its own checksum.

    {"r":{"id":"step0/:loss","seq":7,"dtype":"float32","shape":[],"mb":0,"at":[...]},"x":"<xxh3-64>"}\n
    {"end":{"steps":1,"hooks_expected":12,"hooks_fired":12, ...},"x":"<xxh3-64>"}\n

Enters: a JSON value; leaves: a line, and back. The checksum covers the bytes of the value as they
stand in the line: compact ASCII JSON. So a line is checked before it is parsed, and nothing
depends on how a JSON library writes its output. A line without its newline was torn by a kill.
"""

from __future__ import annotations

import json
from typing import Any

import xxhash

FORMAT = "ttrace"
VERSION = 1
VERSION_WITH_PAYLOADS = 2  # version 1, with at least one record that is no full payload

MANIFEST = "manifest.json"
JOURNAL = "journal.jsonl"

RECORD = "r"
END = "end"

_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False)
_HEADS = {key: f'{{"{key}":'.encode() for key in (RECORD, END)}
_SEPARATOR = b',"x":"'
_TAIL = b'"}'
_DIGEST_CHARS = 16
_ENVELOPE_END_BYTES = len(_SEPARATOR) + _DIGEST_CHARS + len(_TAIL)


def rank_folder(rank: int) -> str:
    return f"rank-{rank:05d}"


def frame(key: str, value: dict[str, Any]) -> bytes:
    """A journal line, newline included."""
    text = _ENCODER.encode(value).encode("ascii")
    digest: str = xxhash.xxh3_64_hexdigest(text)
    return _HEADS[key] + text + _SEPARATOR + digest.encode("ascii") + _TAIL + b"\n"


def is_end(line: bytes) -> bool:
    """Whether a line is the last one of its rank."""
    return line.startswith(_HEADS[END])


def unframe(line: bytes) -> tuple[str, dict[str, Any]]:
    """Key and value of a line without its newline; ValueError says what is wrong with it."""
    body, envelope_end = line[:-_ENVELOPE_END_BYTES], line[-_ENVELOPE_END_BYTES:]
    key = next((key for key, head in _HEADS.items() if line.startswith(head)), None)
    if key is None or not envelope_end.startswith(_SEPARATOR) or not envelope_end.endswith(_TAIL):
        raise ValueError('it is not of the form {"r":...,"x":"..."}')
    text = body[len(_HEADS[key]) :]
    found = envelope_end[len(_SEPARATOR) : -len(_TAIL)].decode("ascii", errors="replace")
    expected = xxhash.xxh3_64_hexdigest(text)
    if found != expected:
        raise ValueError(f"its bytes have the checksum {expected}, the line says {found!r}")
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError(f"expected an object, found a {type(value).__name__}")
    return key, value
