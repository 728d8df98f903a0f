r"""Sealed files: a JSON object whose last key is the checksum of all bytes before it.

    {"rank": 0, ...,
     "xxh3": "<xxh3-64 of everything up to the comma>"}

Enters: an object; leaves: text, and back. Manifests and plans are such files.
"""

from __future__ import annotations

import json
import re
from typing import Any

import xxhash

from ttrace.core.door import parse_json
from ttrace.core.refused import InWords, Refused

_SEAL = re.compile(rb',\n "xxh3": "([0-9a-f]{16})"\n}\n')
_SEAL_BYTES = len(b',\n "xxh3": ""\n}\n') + 16


def seal(data: dict[str, Any], *, indent: int | None = None) -> tuple[bytes, str]:
    """The text of an object that has keys, and its checksum."""
    body = json.dumps(data, indent=indent, allow_nan=False).encode("ascii")
    body = body.removesuffix(b"}").rstrip()
    digest: str = xxhash.xxh3_64_hexdigest(body)
    return body + f',\n "xxh3": "{digest}"\n}}\n'.encode("ascii"), digest


def unseal(text: bytes) -> tuple[Any, str]:
    """The object and its checksum; Refused where the text is not what was sealed."""
    match = _SEAL.fullmatch(text[-_SEAL_BYTES:])
    if match is None:
        raise Refused(InWords("no checksum"), 'a last line like "xxh3": "0123456789abcdef"')
    found = match[1].decode("ascii")
    expected: str = xxhash.xxh3_64_hexdigest(text[:-_SEAL_BYTES])
    if found != expected:
        raise Refused(found, f"{expected}: it was changed after it was written", "xxh3")
    return parse_json(text), found
