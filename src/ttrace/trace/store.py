"""Where files are: a path of this machine, or a URL behind fsspec (s3://, gs://, memory://).

    place_of("out/run")             Path("out/run")
    place_of("file:///data/run")    Path("/data/run")
    place_of("s3://bucket/run")     Url("s3://bucket/run")

A Url is plain data, so that other processes and machines can open it again. It has the few methods
of a path that a trace needs. fsspec is imported when the first Url is opened, and never for a path.
How a store is reached (endpoint, credentials) is fsspec's own configuration.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar
from urllib.parse import unquote

from ttrace.errors import TraceError, TraceNotFound, UsageError
from ttrace.trace.upload import copy_rank, put_bytes, retry

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.:-]*://")
_FILE = "file://"
# Chosen: a server that is restarted, or says that it is asked too often, is back by then. Some
# packages try for a while themselves: nothing is tried again after so long.
_WAITS_SECONDS = (0.5, 1.0, 2.0, 4.0, 8.0)
_PATIENCE_SECONDS = 20.0
# Chosen: at 100 MB/s it takes 40 ms, longer than the 20 ms or so until a store begins to answer.
RANGE_BYTES = 4 << 20

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Url:
    """A place behind fsspec; `size_bytes` is of a file that a listing told of."""

    text: str
    size_bytes: int | None = field(default=None, compare=False)

    def __str__(self) -> str:
        return self.text

    def __truediv__(self, name: str) -> Url:
        return Url(f"{self.text.rstrip('/')}/{name}")

    @property
    def name(self) -> str:
        return self.text.rstrip("/").rpartition("/")[2]

    def resolve(self) -> Url:
        """Itself: it means the same from everywhere."""
        return self

    def exists(self) -> bool:
        """Whether there is such a file."""
        fs, path = _opened(self.text)
        return bool(attempted(lambda: fs.exists(path), f"look for {self}"))

    def open(self, mode: Literal["rb"]) -> io.BufferedReader:
        """The file from its start, in large ranges."""
        size_bytes = self.size_bytes
        if size_bytes is None:
            fs, path = _opened(self.text)
            size_bytes = int(attempted(lambda: fs.info(path)["size"], f"read {self}"))
        return io.BufferedReader(_RangesOfFile(self, size_bytes), RANGE_BYTES)

    def read_range(self, start: int, stop: int) -> bytes:
        """Bytes start : stop; fewer where the file ends before."""
        fs, path = _opened(self.text)
        what = f"read {self} at byte {start}"
        return bytes(attempted(lambda: fs.cat_file(path, start=start, end=stop), what))

    def write_bytes(self, data: bytes) -> None:
        fs, path = _opened(self.text)
        attempted(lambda: put_bytes(fs, path, data), f"write {self}")

    def take_rank(self, folder: Path) -> None:
        """Move the folder of a rank here; all of it stays where it was when that fails."""
        fs, path = _opened(self.text)
        try:
            copy_rank(folder, fs, path)
        except Exception as error:  # every store has errors of its own
            raise TraceError(
                f"cannot copy {folder} to {self}: {type(error).__name__}: {error}; it is still "
                "there: copy it when the store answers"
            ) from error

    def write_text(self, text: str, encoding: str) -> None:
        self.write_bytes(text.encode(encoding))

    def unlink(self) -> None:
        fs, path = _opened(self.text)
        attempted(lambda: fs.rm_file(path), f"remove {self}")

    def listing(self) -> dict[str, int]:
        """All files below, by their names from here on, with their sizes: one listing."""
        fs, path = _opened(self.text)

        def found() -> dict[str, Any]:
            fs.invalidate_cache()  # others write there
            entries: dict[str, Any] = fs.find(path, detail=True)
            return entries

        try:
            entries = attempted(found, f"list {self}")
        except TraceNotFound:
            return {}
        prefix = path.strip("/") + "/"
        names = {name.lstrip("/"): entry for name, entry in entries.items()}
        return {
            name.removeprefix(prefix): int(entry["size"] or 0)
            for name, entry in names.items()
            if name.startswith(prefix)
        }


PathOrUrl = Path | Url
Range = tuple[Url, int, int]  # of a file, bytes from : to


def read_ranges(ranges: Sequence[Range]) -> list[bytes]:
    """Bytes of files of one store, asked for together; what fails is asked for by itself again."""
    fs, _ = _opened(ranges[0][0].text)
    paths, starts, stops = zip(
        *((_opened(url.text)[1], start, stop) for url, start, stop in ranges), strict=True
    )
    found = fs.cat_ranges([*paths], [*starts], [*stops], on_error="return")
    return [
        url.read_range(start, stop) if isinstance(data, Exception) else bytes(data)
        for data, (url, start, stop) in zip(found, ranges, strict=True)
    ]


def place_of(text: PathOrUrl | str) -> PathOrUrl:
    """A path, or a Url where the text is one."""
    if isinstance(text, Path | Url):
        return text
    if text.startswith(_FILE):
        return Path(unquote(text.removeprefix(_FILE)))
    return Url(text) if _URL.match(text) else Path(text)


def local_path(text: PathOrUrl | str) -> Path:
    """A path of this machine; UsageError of a URL, where files are changed or read many times."""
    place = place_of(text)
    if isinstance(place, Url):
        raise UsageError(
            f"{place} is a URL, and a folder or file of this machine was expected: only `ttrace "
            "run --out`, traces that are read, --json and --html may be URLs; copy what was "
            "written when it is whole"
        )
    return place


def attempted(work: Callable[[], _T], what: str) -> _T:
    """What it returns, tried again after errors that may pass; then an error that says what."""
    try:
        return retry(work, _WAITS_SECONDS, _PATIENCE_SECONDS)
    except FileNotFoundError as error:
        raise TraceNotFound(f"cannot {what}: there is no such place") from error
    except Exception as error:  # every store has errors of its own
        raise TraceError(
            f"cannot {what}: {type(error).__name__}: {error}; nothing was changed: look at the "
            "store, its credentials and the network, then try again"
        ) from error


def _opened(text: str) -> tuple[Any, str]:
    """The file system of a URL, which fsspec keeps, and the path in it."""
    try:
        from fsspec.core import url_to_fs
    except ImportError as error:
        raise UsageError(
            f"{text} needs fsspec, which is not installed: pip install 'ttrace[storage]'"
        ) from error
    try:
        fs, path = url_to_fs(text)
    except (ImportError, ValueError) as error:
        raise UsageError(
            f"fsspec cannot open {text}: {error}; install the package of its protocol, such as "
            "s3fs for s3:// or gcsfs for gs://, or give a path"
        ) from error
    return fs, str(path)


class _RangesOfFile(io.RawIOBase):
    """A file from its start, each read a range."""

    def __init__(self, url: Url, size_bytes: int) -> None:
        super().__init__()
        self._url = url
        self._size_bytes = size_bytes
        self._position = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        stop = min(self._position + len(buffer), self._size_bytes)
        if stop <= self._position:
            return 0
        data = self._url.read_range(self._position, stop)
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)
