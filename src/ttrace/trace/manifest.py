"""Manifests: what a rank says of itself, in a file that is sealed.

    {"format": "ttrace", "version": 3, "rank": 0, ...,
     "xxh3": "<xxh3-64 of everything up to the comma>"}

A sealed file is a JSON object whose last key is the checksum of all bytes before it; so are plans.
What is read may be a file that a stranger made. Leaves: what it says, and where the chain of the
rank's journal begins.
"""

from __future__ import annotations

import functools
import json
import re
from dataclasses import dataclass
from typing import Any

import xxhash

from ttrace.core.door import InWords, Refused, bounded, from_dict, parse_json, shown
from ttrace.core.limits import MANIFEST_BYTES
from ttrace.core.record import ModuleInfo, RankInfo
from ttrace.errors import CorruptTrace, UnsupportedTrace
from ttrace.trace import journal
from ttrace.trace.files import TraceFiles
from ttrace.trace.store import PathOrUrl

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


_LISTS_KEPT = 64  # chosen: more than a model has pipeline stages


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What a rank says of itself, and the checksum of the text that says it."""

    info: RankInfo
    digest: str

    def chain(self) -> journal.Chain:
        """The chain of the rank's journal, before its first line."""
        return journal.Chain(self.digest)


def read_manifest(files: TraceFiles, rank: int) -> Manifest:
    """The manifest of a rank of this trace."""
    name = f"{journal.rank_folder(rank)}/{journal.MANIFEST}"
    path = files.place / name
    try:
        with files.open(name, holds=f"what rank {rank} says of itself") as file:
            text = bounded(file, MANIFEST_BYTES)
        data = parse_json(text)
        if not isinstance(data, dict):
            raise Refused(data, "an object")
        _require_known(path, data)
        data, digest = unseal(text)
        info = _info(data)
        if info.rank != rank:
            raise Refused(info.rank, str(rank), ".rank")
    except Refused as refused:
        raise CorruptTrace(
            f"{path} is not the manifest of rank {rank}: {refused}; copy the trace again or "
            f"trace the run again"
        ) from refused
    return Manifest(info=info, digest=digest)


def _info(data: dict[str, Any]) -> RankInfo:
    """Ranks of a run have long lists of modules in common, which are read once."""
    try:
        modules = _modules(tuple(map(tuple, data["modules"])))
    except (Refused, KeyError, TypeError):  # read in its place, to say where it is wrong
        return from_dict(RankInfo, data)
    return from_dict(RankInfo, data, modules=modules)


@functools.lru_cache(maxsize=_LISTS_KEPT)
def _modules(listed: tuple[tuple[Any, ...], ...]) -> tuple[ModuleInfo, ...]:
    return tuple(from_dict(ModuleInfo, list(item)) for item in listed)


def _require_known(path: PathOrUrl, data: dict[str, Any]) -> None:
    format_, version = data.get("format"), data.get("version")
    if format_ != journal.FORMAT:
        raise UnsupportedTrace(
            f"{path} has the format {format_!r}, expected {journal.FORMAT!r}: this folder was not "
            f"written by ttrace"
        )
    if type(version) is not int or version != journal.VERSION:
        is_newer = type(version) is int and version > journal.VERSION
        todo = "upgrade ttrace to read it" if is_newer else "trace the run again with this ttrace"
        raise UnsupportedTrace(
            f"{path} has version {shown(version)} of the trace format, this ttrace reads version "
            f"{journal.VERSION}: {todo}"
        )
