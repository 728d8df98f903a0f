"""Reading manifests: what a rank says of itself, sealed from version 3 on.

Enters: a file that a stranger may have made. Leaves: what it says, and where the chain of the
rank's journal begins.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

from ttrace.core.door import bounded, from_dict, parse_json
from ttrace.core.limits import MANIFEST_BYTES
from ttrace.core.record import ModuleInfo, RankInfo
from ttrace.core.refused import Refused
from ttrace.errors import CorruptTrace, UnsupportedTrace
from ttrace.trace import journal
from ttrace.trace.files import TraceFiles
from ttrace.trace.sealed import unseal
from ttrace.trace.store import PathOrUrl

_LISTS_KEPT = 64  # chosen: more than a model has pipeline stages
_ONCE_VERSIONS = ("torch seed", "git commit")  # where they stood before manifests had facts


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What a rank says of itself; without a digest where an older version wrote it."""

    info: RankInfo
    digest: str | None

    def chain(self) -> journal.Chain:
        """The chain of the rank's journal, before its first line."""
        return journal.Chain(self.digest or "0", is_linked=self.digest is not None)


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
        digest = None
        if data["version"] == journal.VERSION:
            data, digest = unseal(text)
        info = _info(data if digest else _upgraded(data))
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
    known = (*journal.ONCE_VERSIONS, journal.VERSION)
    if type(version) is not int or version not in known:
        raise UnsupportedTrace(
            f"{path} has version {version!r} of the trace format, this ttrace reads versions "
            f"{', '.join(map(str, known))}: upgrade ttrace to read it"
        )


def _upgraded(data: dict[str, Any]) -> dict[str, Any]:
    """A manifest of an older version as one of today."""
    versions = data.get("versions")
    if "facts" in data or not isinstance(versions, dict):
        return data
    facts = {name: versions[name] for name in _ONCE_VERSIONS if name in versions}
    others = {name: version for name, version in versions.items() if name not in facts}
    return {**data, "versions": others, "facts": facts}
