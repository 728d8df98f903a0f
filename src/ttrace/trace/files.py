"""The files of one trace, by their names in it: found, opened and sized, here or behind a URL.

    rank-00003/manifest.json, rank-00003/journal.jsonl, rank-00003/seg-00000.safetensors

Strangers make traces too: nothing outside of the folder is given out. Behind a URL all names and
sizes come from one listing, and the small files of the ranks that come next are fetched together.
"""

from __future__ import annotations

import io
import os
import re
from collections import OrderedDict
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import IO, Protocol

from ttrace.errors import CorruptTrace, TraceNotFound
from ttrace.trace import journal
from ttrace.trace.store import RANGE_BYTES, PathOrUrl, Url, place_of, read_ranges

_RANK_FOLDER = re.compile(r"rank-([0-9]{5,9})")
AT_ONCE = 16  # chosen: files that are asked for; a store far away answers after 20 to 100 ms


class TraceFiles(Protocol):
    """The files of the trace at `place`; a file that is not there, or elsewhere, is CorruptTrace.

    `holds` says in words what it was expected to hold.
    """

    @property
    def place(self) -> PathOrUrl: ...

    def folders(self) -> list[str]:
        """The names of all folders in it, sorted; TraceNotFound where there is no folder."""

    def has(self, name: str) -> bool:
        """Whether there is such a file."""

    def beside(self) -> list[str]:
        """The names of all files that lie beside the folders, sorted."""

    def size(self, name: str, *, holds: str) -> int: ...

    def segments_bytes(self) -> int:
        """The size of all segments together."""

    def tail(self, name: str, most_bytes: int) -> bytes:
        """The last bytes of a file."""

    def open(self, name: str, *, holds: str) -> IO[bytes]:
        """To be read from its start to its end."""

    def read_soon(self, names: Iterable[str]) -> None:
        """These will be opened, in this order."""


class LocalFiles:
    """Of a folder of this machine."""

    def __init__(self, root: Path) -> None:
        self.place = root

    def folders(self) -> list[str]:
        root = self.place
        if not root.is_dir():
            raise _no_trace(root, "a file" if root.exists() else "missing")
        return sorted(entry.name for entry in root.iterdir() if entry.is_dir())

    def has(self, name: str) -> bool:
        return (self.place / name).is_file()

    def beside(self) -> list[str]:
        entries = self.place.iterdir() if self.place.is_dir() else ()
        return sorted(entry.name for entry in entries if entry.is_file())

    def segments_bytes(self) -> int:
        return sum(path.stat().st_size for path in self.place.glob(f"{journal.RANK}*/seg-*"))

    def tail(self, name: str, most_bytes: int) -> bytes:
        with (self.place / name).open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - most_bytes))
            return file.read()

    def size(self, name: str, *, holds: str) -> int:
        return self.own(name, holds=holds).stat().st_size

    def open(self, name: str, *, holds: str) -> IO[bytes]:
        return self.own(name, holds=holds).open("rb")

    def read_soon(self, names: Iterable[str]) -> None:
        """The system reads ahead by itself."""

    def own(self, name: str, *, holds: str) -> Path:
        """The path of a file, unless it is no regular file inside of the trace."""
        path = self.place / name
        if not path.is_file():
            raise _missing(path, "not a regular file" if path.exists() else "missing", holds)
        if not path.resolve().is_relative_to(self.place.resolve()):
            raise CorruptTrace(
                f"{path} leads out of the trace {self.place}, expected it to hold {holds}; put the "
                f"file itself there if you trust it"
            )
        return path


class RemoteFiles:
    """Of a folder behind a URL, as they were when it was listed."""

    def __init__(self, root: Url) -> None:
        self.place = root
        self._sizes = root.listing()
        self._soon: OrderedDict[str, None] = OrderedDict()
        self._fetched: dict[str, bytes] = {}

    def folders(self) -> list[str]:
        if not self._sizes:
            raise _no_trace(self.place, "empty or missing")
        # The manifest of a rank is copied last: without it the others are not all there.
        ends = f"/{journal.MANIFEST}"
        return sorted(name.removesuffix(ends) for name in self._sizes if name.endswith(ends))

    def has(self, name: str) -> bool:
        return name in self._sizes

    def beside(self) -> list[str]:
        return sorted(name for name in self._sizes if "/" not in name)

    def segments(self) -> list[str]:
        return [name for name in self._sizes if name.endswith(".safetensors")]

    def segments_bytes(self) -> int:
        return sum(self._sizes[name] for name in self.segments())

    def tail(self, name: str, most_bytes: int) -> bytes:
        url, size_bytes = self._own(name, "lines")
        return url.read_range(max(0, size_bytes - most_bytes), size_bytes)

    def size(self, name: str, *, holds: str) -> int:
        return self._own(name, holds)[1]

    def open(self, name: str, *, holds: str) -> IO[bytes]:
        url, size_bytes = self._own(name, holds)
        if name in self._soon:
            self._fetch(name)
        data = self._fetched.pop(name, None)
        return Url(str(url), size_bytes).open("rb") if data is None else io.BytesIO(data)

    def read_soon(self, names: Iterable[str]) -> None:
        small = (name for name in names if 0 < self._sizes.get(name, 0) <= RANGE_BYTES)
        self._soon = OrderedDict.fromkeys(small)

    def _fetch(self, name: str) -> None:
        """A file, and the next of those that will be read soon."""
        del self._soon[name]
        names = [name, *islice(self._soon, AT_ONCE - 1)]
        ranges = [(self.place / each, 0, self._sizes[each]) for each in names]
        self._fetched.update(zip(names, read_ranges(ranges), strict=True))
        for each in names[1:]:
            del self._soon[each]

    def _own(self, name: str, holds: str) -> tuple[Url, int]:
        if name not in self._sizes:
            raise _missing(self.place / name, "missing", holds)
        return self.place / name, self._sizes[name]


def files_of(place: PathOrUrl | str) -> LocalFiles | RemoteFiles:
    """The files of the trace there; those behind a URL are listed now."""
    place = place_of(place)
    return RemoteFiles(place) if isinstance(place, Url) else LocalFiles(place)


def rank_folders(files: TraceFiles) -> dict[int, str]:
    """The names of the folders of all ranks; TraceNotFound where there is no folder at all."""
    matches = ((name, _RANK_FOLDER.fullmatch(name)) for name in files.folders())
    found = [(int(match[1]), name) for name, match in matches if match]
    return {rank: name for rank, name in found if name == journal.rank_folder(rank)}


def rank_names(files: TraceFiles) -> list[str]:
    """The folders of all ranks that are there; none where there is no trace yet."""
    try:
        return list(rank_folders(files).values())
    except TraceNotFound:
        return []


def _no_trace(place: PathOrUrl, found: str) -> TraceNotFound:
    return TraceNotFound(
        f"{place} is {found}: expected the folder of a trace; make one with `ttrace run`"
    )


def _missing(place: PathOrUrl, found: str, holds: str) -> CorruptTrace:
    return CorruptTrace(
        f"{place} is {found}, expected it to hold {holds}; copy the trace again or trace the run "
        f"again"
    )
