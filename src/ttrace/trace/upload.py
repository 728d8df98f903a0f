"""The folder of one rank, copied from a disk of this machine to behind a URL.

    python upload.py SPOOL/rank-00003 s3://bucket/run/rank-00003

The manifest goes last, and whoever reads a trace there sees no rank without it: a rank is there
whole, or not at all. Files are removed here when all of them are there, each in its size.

As a program this runs beside a rank. It waits for the end of its standard input, which comes when
the rank has ended or was killed, copies, and says on its standard output why it could not. It
imports nothing of TTrace: a rank is neither slowed by its upload nor ended by it.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

_MANIFEST = "manifest.json"
_BEGUN = ".begun"  # what lies behind the URL is of this folder, and may be written once more
_WAITS_SECONDS = (1.0, 2.0, 4.0, 8.0, 16.0)  # chosen: somebody may wait for it
_NICENESS = 10  # chosen: training goes first
# These do not pass. Whoever repairs what they name finds the files where they were.
_LASTING = (
    *(FileExistsError, FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError),
    *(ImportError, NotImplementedError, TypeError, ValueError),
)

_T = TypeVar("_T")


def copy_rank(folder: Path, fs: Any, path: str) -> None:
    """Move the files of a rank to `path` of a file system of fsspec; where it raises, all stay."""
    path = path.rstrip("/")
    _claim(folder, fs, path)
    files = [file for file in folder.iterdir() if file.name != _BEGUN]
    # The journal first: it is short, and others see that this place is taken.
    files.sort(key=lambda file: (file.name == _MANIFEST, file.name))
    for file in files:
        _copy_file(file, fs, f"{path}/{file.name}")
    for file in (*files, folder / _BEGUN):
        file.unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # other ranks have their folders beside it
        folder.rmdir()
        folder.parent.rmdir()


def _claim(folder: Path, fs: Any, path: str) -> None:
    """FileExistsError where somebody else's files are; a copy that broke off is made again."""
    if (folder / _BEGUN).exists():
        return
    fs.invalidate_cache()  # others write there
    if retry(lambda: fs.find(path), _WAITS_SECONDS):
        raise FileExistsError(f"{path} already holds files, and a trace is never overwritten")
    with contextlib.suppress(OSError):  # a disk that is full of the trace is no reason to keep it
        (folder / _BEGUN).touch()


def _copy_file(file: Path, fs: Any, path: str) -> None:
    def put() -> None:
        _write_with_folders(fs, path, lambda: fs.put_file(str(file), path))
        found, expected = fs.info(path)["size"], file.stat().st_size
        if found != expected:
            raise OSError(f"{path} has {found} bytes, {file} has {expected}")

    retry(put, _WAITS_SECONDS)


def retry(
    work: Callable[[], _T], waits_seconds: Sequence[float], patience_seconds: float = float("inf")
) -> _T:
    """What `work` returns, tried again after errors that may pass: every store has its own."""
    deadline = time.monotonic() + patience_seconds
    for wait_seconds in waits_seconds:
        try:
            return work()
        except _LASTING:
            raise
        except Exception:
            if time.monotonic() > deadline:
                raise
        time.sleep(wait_seconds)
    return work()


def put_bytes(fs: Any, path: str, data: bytes) -> None:
    """Write a file, and folders that it lies in where a store has such; never a new bucket."""
    _write_with_folders(fs, path, lambda: fs.pipe_file(path, data))


def _write_with_folders(fs: Any, path: str, write: Callable[[], object]) -> None:
    try:
        write()
    except FileNotFoundError:
        first = path[: len(path) - len(path.lstrip("/"))] + path.strip("/").partition("/")[0]
        if not fs.exists(first):
            raise
        fs.makedirs(path.rpartition("/")[0], exist_ok=True)
        write()


def main() -> int:
    """The exit code; where it is not 0, standard output has the reason."""
    os.nice(_NICENESS)
    sys.stdin.buffer.read()
    try:
        from fsspec.core import url_to_fs

        copy_rank(Path(sys.argv[1]), *url_to_fs(sys.argv[2]))
    except Exception as error:  # noqa: BLE001  (the rank has to be told, whatever it is)
        why = " ".join(f"{type(error).__name__}: {error}".split())
        with contextlib.suppress(OSError):  # the rank may be gone
            os.write(1, why.encode(errors="replace"))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
