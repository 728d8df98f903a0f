"""A trace behind a URL: it is written to a folder here as any other, and uploaded meanwhile.

    TTRACE_OUT=s3://bucket/run        the trace
    TTRACE_SPOOL=/local/disk          what is not uploaded yet; the temporary directory by default

A process of its own uploads (trace/upload.py): nothing of that can hold up training, and this
process imports nothing for it. Once the script has ended the process waits for that upload. An
upload that fails is said in the log; what was recorded stays in the spool, and training goes on.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import subprocess
import sys
from multiprocessing.util import Finalize
from pathlib import Path
from typing import NamedTuple

import xxhash

from ttrace.capture.guard import log_fault
from ttrace.capture.settings import Settings
from ttrace.core.record import RankInfo, Summary
from ttrace.errors import UsageError
from ttrace.trace import journal, upload
from ttrace.trace.store import Url
from ttrace.trace.writer import TraceWriter

_SILENCE_SECONDS = 600.0  # chosen: a segment of 1 GiB takes less at 2 MB/s; then it is given up
_SAID_BYTES = 1 << 12  # chosen: the reason of a failure is shorter
_QUIETLY = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL
_AFTER_OTHERS = -1  # of what multiprocessing does at exit: traces are closed at 0


def writer_of(settings: Settings, info: RankInfo, max_bytes: int | None) -> TraceWriter:
    """Who writes the trace of this rank: into its folder, or to where its URL leads."""
    folder = settings.folder
    if not isinstance(folder, Url):
        return TraceWriter(folder, info, resume=settings.resume, max_bytes=max_bytes)
    if settings.resume:
        raise UsageError(f"a run cannot go on with the trace {folder}: only with one on a disk")
    return ShippedWriter(folder, settings.spool, info, max_bytes=max_bytes)


class ShippedWriter(TraceWriter):
    """Writes a rank of the trace at `url` into the spool, and says what of it can be uploaded."""

    def __init__(self, url: Url, spool: Path, info: RankInfo, *, max_bytes: int | None) -> None:
        folder = spool_folder(url, spool)
        super().__init__(folder, info, max_bytes=max_bytes)
        if (os.getpid(), str(self.folder)) in _SHIPPED:
            self.withdraw()
            raise UsageError("this process was traced already: call ttrace.attach once")
        self._shipping = Shipping(self.folder, url / self.folder.name)
        self._segments.on_closed = self._shipping.segment

    def end_step(self, number: int) -> None:
        """The segments of a step are closed with it: a reader may see all of the step."""
        super().end_step(number)
        with self._lock:
            self._segments.seal()
            self._shipping.journal(os.fstat(self._fd).st_size, self._segments.count)

    def close(self, summary: Summary) -> None:
        super().close(summary)
        self._ship_end()

    def abandon(self) -> None:
        was_open = self._fd >= 0
        super().abandon()
        if was_open:
            self._ship_end()

    def _ship_end(self) -> None:
        _SHIPPED.add((os.getpid(), str(self.folder)))
        size_bytes = (self.folder / journal.JOURNAL).stat().st_size
        self._shipping.journal(size_bytes, self._segments.count)
        self._shipping.end()


class Shipping:
    """The process that uploads the folder of a rank; it starts with the first that is to go."""

    def __init__(self, folder: Path, url: Url) -> None:
        self._folder = folder
        self._url = url
        self._process: _Uploading | None = None
        self._waiting = b""  # lines that the process was too busy to take
        self._failure: Exception | None = None
        self._at_exit: Finalize | None = None

    def segment(self, path: Path) -> None:
        self._tell(f"segment {path.name}")

    def journal(self, size_bytes: int, segments: int) -> None:
        self._tell(f"journal {size_bytes} {segments}")

    def end(self) -> None:
        self._tell("end")

    def wait(self) -> None:
        """Until all is uploaded, or it is given up; what is wrong is said in the log."""
        if self._at_exit is not None:
            self._at_exit.cancel()
        process, self._process = self._process, None
        if process is not None:
            last = process.finish(self._waiting)
            if last != "whole":
                self._failure = OSError(last.removeprefix("failed ") or "it came to no end")
        if self._failure is not None:
            log_fault(
                f"the trace was not uploaded to {self._url}; what is not there yet is kept in "
                f"{self._folder}: copy it there",
                self._failure,
            )

    def _tell(self, line: str) -> None:
        """Never waits, and never raises: what is told here is told by hooks of a run."""
        if self._failure is not None:
            return
        self._waiting += f"{line}\n".encode()
        try:
            if self._process is None:
                self._process = _Uploading.start(self._folder, self._url)
                self._at_exit = Finalize(None, self.wait, exitpriority=_AFTER_OTHERS)
            self._waiting = self._waiting[self._process.line.send(self._waiting, _QUIETLY) :]
        except BlockingIOError:
            pass
        except OSError as error:  # it has ended, and says why when it is asked
            self._failure = error


class _Uploading(NamedTuple):
    """The process, and the line to it: a signal of a broken pipe would end the run."""

    process: subprocess.Popen[bytes]
    line: socket.socket

    @classmethod
    def start(cls, folder: Path, url: Url) -> _Uploading:
        line, its_end = socket.socketpair()
        with its_end:
            process = subprocess.Popen(
                [sys.executable, "-P", upload.__file__, str(folder), str(url)],
                stdin=its_end.fileno(),
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                bufsize=0,
                start_new_session=True,  # what a terminal sends is for the run
            )
        return cls(process, line)

    def finish(self, waiting: bytes) -> str:
        """Tell it the rest, and wait for its end: the last line that it says."""
        assert self.process.stdout is not None
        with contextlib.suppress(OSError), self.line:  # it may have failed, and says why
            self.line.sendall(waiting, socket.MSG_NOSIGNAL)
        said = b""
        with self.process.stdout as news:
            while select.select([news], [], [], _SILENCE_SECONDS)[0]:
                part = os.read(news.fileno(), _SAID_BYTES)
                if not part:
                    break
                said = (said + part)[-_SAID_BYTES:]
            else:
                self.process.kill()
        self.process.wait()
        return said.decode(errors="replace").rstrip("\n").rpartition("\n")[2]


def spool_folder(url: Url, spool: Path) -> Path:
    """Where the trace at a URL is before it is uploaded: a folder of this user alone."""
    digest: str = xxhash.xxh3_64_hexdigest(str(url).encode())
    folder = spool / f"ttrace-{os.getuid()}-{digest}"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.is_symlink() or folder.stat().st_uid != os.getuid():
        raise UsageError(f"{folder} belongs to somebody else: choose another spool, TTRACE_SPOOL")
    return folder


_SHIPPED: set[tuple[int, str]] = set()  # of processes: folders whose trace has come to its end
