"""A program of its own: it uploads what one rank has written, while the rank trains.

    python upload.py SPOOL/rank-00003 s3://bucket/run/rank-00003

Enters, by standard input: lines that say what is ready.

    segment seg-00000.safetensors     nothing of this file changes any more
    journal 81234 1                   its first bytes speak of the first so many segments only
    end                               nothing follows; where this is missing, the rank has died

Leaves: files in the order in which a reader may find them: the manifest, segments, then a journal
that speaks of no other segment. What is there is removed here. Once the rank has ended a line on
standard output follows every file, and the last is `whole`, `left`, or `failed` and why. It
imports nothing of TTrace: a rank is not slowed by its upload, nor ends it by ending.
"""

from __future__ import annotations

import contextlib
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

_MANIFEST = "manifest.json"
_JOURNAL = "journal.jsonl"
_NOTE = "not-attached-"  # whoever reads the trace shows what such files beside its ranks say
_WAITS_SECONDS = (1.0, 2.0, 4.0, 8.0, 16.0)  # chosen: once the rank has ended somebody waits for it
_JOURNAL_SECONDS = 10.0  # chosen: between two journals, of which each is uploaded as a whole
_NICENESS = 10  # chosen: training goes first
# These do not pass. Whoever repairs what they name finds the files in the spool.
_LASTING = (
    *(FileExistsError, IsADirectoryError, NotADirectoryError, PermissionError),
    *(ImportError, TypeError, ValueError),
)


class Upload:
    """The folder of one rank on its way to `path` of a file system of fsspec."""

    def __init__(self, folder: Path, fs: Any, path: str, told: Callable[[str], None]) -> None:
        self._folder = folder
        self._fs = fs
        self._path = path.rstrip("/")
        self._told = told
        self._sent: set[str] = set()
        self._due: list[tuple[int, int]] = []  # of journals: bytes, and segments that they need
        self._journal_at = 0.0
        self.ending = threading.Event()  # the rank has ended, well or not

    def begin(self) -> None:
        """Claim the folder: what is there already is never overwritten."""
        if self._attempt(lambda: self._fs.find(self._path)):
            raise FileExistsError(
                f"{self._path} already holds files, and a trace is never overwritten"
            )
        data = (self._folder / _MANIFEST).read_bytes()
        self._attempt(lambda: put_bytes(self._fs, f"{self._path}/{_MANIFEST}", data))
        self._tell(_MANIFEST)

    def run(self, lines: Iterable[str]) -> bool:
        """Upload what the lines say is ready; whether the rank came to its end."""
        ready: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._listen, args=(lines, ready), daemon=True).start()
        self.begin()
        is_open, is_whole = True, False
        while is_open:
            for line in self._next(ready):
                if line is None or line == "end":
                    is_open, is_whole = False, line == "end"
                    break
                self._take(line)
            self._send_journal(at_once=not is_open)
        if is_whole and not self._due:
            self._clean()
        return is_whole and not self._due

    def _listen(self, lines: Iterable[str], ready: queue.Queue[str | None]) -> None:
        for line in lines:
            if line.strip() == "end":
                self.ending.set()
            ready.put(line.strip())
        self.ending.set()
        ready.put(None)

    def _next(self, ready: queue.Queue[str | None]) -> list[str | None]:
        """All lines that came, at least one unless a journal waits to be sent."""
        left = self._journal_at + _JOURNAL_SECONDS - time.monotonic()
        found: list[str | None] = []
        with contextlib.suppress(queue.Empty):
            found.append(ready.get(timeout=max(0.0, left) if self._due else None))
            while True:
                found.append(ready.get_nowait())
        return found

    def _take(self, line: str) -> None:
        what, _, rest = line.partition(" ")
        if what == "segment":
            self._send_segment(rest)
        elif what == "journal":
            stop, count = map(int, rest.split())
            self._due.append((stop, count))

    def _send_segment(self, name: str) -> None:
        here, there = self._folder / name, f"{self._path}/{name}"
        self._attempt(lambda: self._fs.put_file(str(here), there))
        size_bytes = self._attempt(lambda: self._fs.info(there)["size"])
        if size_bytes != here.stat().st_size:
            raise ValueError(f"{there} has {size_bytes} bytes, {here} has {here.stat().st_size}")
        here.unlink()
        self._sent.add(name)
        self._tell(name)

    def _send_journal(self, *, at_once: bool) -> None:
        can_go = [stop for stop, count in self._due if count <= len(self._sent)]
        is_time = time.monotonic() >= self._journal_at + _JOURNAL_SECONDS
        if not can_go or not (at_once or is_time):
            return
        with (self._folder / _JOURNAL).open("rb") as file:
            data = file.read(can_go[-1])
        self._attempt(lambda: put_bytes(self._fs, f"{self._path}/{_JOURNAL}", data))
        self._due = self._due[len(can_go) :]
        self._journal_at = time.monotonic()
        self._tell(_JOURNAL)

    def _tell(self, name: str) -> None:
        """That it goes on, once somebody waits for it."""
        if self.ending.is_set():
            self._told(name)

    def _clean(self) -> None:
        for name in (_MANIFEST, _JOURNAL):
            (self._folder / name).unlink()
        with contextlib.suppress(OSError):  # other ranks have their folders beside it
            self._folder.rmdir()
            self._folder.parent.rmdir()

    def _attempt(self, work: Callable[[], Any]) -> Any:
        """Try again for as long as the rank trains, and after its end a few times more."""
        tries_after_end, number = 0, 0
        while True:
            try:
                return work()
            except _LASTING:
                raise
            except Exception:
                tries_after_end += self.ending.is_set()
                if tries_after_end > len(_WAITS_SECONDS):
                    raise
            wait_seconds = _WAITS_SECONDS[min(number, len(_WAITS_SECONDS) - 1)]
            if self.ending.is_set():
                time.sleep(wait_seconds)
            else:
                self.ending.wait(wait_seconds)
            number += 1


def put_bytes(fs: Any, path: str, data: bytes) -> None:
    """Write a file, and folders that it lies in where a store has such; never a new bucket."""
    try:
        fs.pipe_file(path, data)
    except FileNotFoundError:
        first = path[: len(path) - len(path.lstrip("/"))] + path.strip("/").partition("/")[0]
        if not fs.exists(first):
            raise
        fs.makedirs(path.rpartition("/")[0], exist_ok=True)
        fs.pipe_file(path, data)


def main() -> int:
    """What the last line says, as an exit code."""
    folder, url = Path(sys.argv[1]), sys.argv[2]
    os.nice(_NICENESS)

    def told(text: str) -> None:
        with contextlib.suppress(OSError):  # the rank may be gone
            os.write(1, f"{text}\n".encode(errors="replace"))

    fs: Any = None
    path = ""
    try:
        from fsspec.core import url_to_fs

        fs, path = url_to_fs(url)
        is_whole = Upload(folder, fs, path, told).run(sys.stdin)
    except Exception as error:  # noqa: BLE001  (the rank has to be told, whatever it is)
        why = " ".join(f"{type(error).__name__}: {error}".split())
        if fs is not None:
            _note(fs, path, f"not all that it recorded was uploaded: {why}; it is kept in {folder}")
        told(f"failed {why}")
        return 1
    told("whole" if is_whole else "left")
    return 0


def _note(fs: Any, path: str, text: str) -> None:
    """Say beside the folder of the rank that not all of it is there, if the store is well again."""
    parent, _, rank = path.rstrip("/").rpartition("/")
    with contextlib.suppress(Exception):
        fs.pipe_file(f"{parent}/{_NOTE}{rank}-{os.getpid()}.txt", text.encode())


if __name__ == "__main__":
    sys.exit(main())
