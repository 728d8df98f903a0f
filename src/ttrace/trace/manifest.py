"""Reading manifests: what a rank says of itself, sealed from version 3 on.

Enters: a file that a stranger may have made. Leaves: what it says, and where the chain of the
rank's journal begins.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ttrace.core.door import from_dict, parse_json, read_bounded
from ttrace.core.limits import MANIFEST_BYTES
from ttrace.core.record import RankInfo
from ttrace.core.refused import Refused
from ttrace.errors import CorruptTrace, UnsupportedTrace
from ttrace.trace import journal
from ttrace.trace.sealed import unseal
from ttrace.trace.spans import own_file

_ONCE_VERSIONS = ("torch seed", "git commit")  # where they stood before manifests had facts


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What a rank says of itself; without a digest where an older version wrote it."""

    info: RankInfo
    digest: str | None

    def chain(self) -> journal.Chain:
        """The chain of the rank's journal, before its first line."""
        return journal.Chain(self.digest or "0", is_linked=self.digest is not None)


def read_manifest(root: Path, path: Path, rank: int) -> Manifest:
    """The manifest of a rank of the trace at `root`."""
    own_file(root, path, holds=f"what rank {rank} says of itself")
    try:
        text = read_bounded(path, MANIFEST_BYTES)
        data = parse_json(text)
        if not isinstance(data, dict):
            raise Refused(data, "an object")
        _require_known(path, data)
        digest = None
        if data["version"] == journal.VERSION:
            data, digest = unseal(text)
        info = from_dict(RankInfo, data if digest else _upgraded(data))
        if info.rank != rank:
            raise Refused(info.rank, str(rank), ".rank")
    except Refused as refused:
        raise CorruptTrace(
            f"{path} is not the manifest of rank {rank}: {refused}; copy the trace again or "
            f"trace the run again"
        ) from refused
    return Manifest(info=info, digest=digest)


def _require_known(path: Path, data: dict[str, Any]) -> None:
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
