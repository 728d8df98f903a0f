"""A trace behind a URL: it is written to a folder here as any other, and copied when it has ended.

    TTRACE_OUT=s3://bucket/run        the trace
    TTRACE_SPOOL=/local/disk          where it is until then; the temporary directory by default

A process of its own copies (trace/upload.py), when the rank has closed its trace or was killed.
Packages for stores run event loops, which Python ends before the last lines of a script that ends
with its last step; and a process holds up no training. The process of the rank waits for it at its
exit. A copy that fails is said in the log; what was recorded stays in the spool.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from contextlib import suppress
from multiprocessing.util import Finalize
from pathlib import Path

import xxhash

from ttrace.capture.guard import log_fault
from ttrace.capture.settings import Settings
from ttrace.core.record import RankInfo, Summary
from ttrace.errors import UsageError
from ttrace.trace import journal, upload
from ttrace.trace.store import Url
from ttrace.trace.writer import TraceWriter

_LEAST_SECONDS = 600.0  # chosen: for a store that has to be asked again; then it is given up
_SLOWEST_BYTES = 2e6  # chosen: a second, and the time above
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
    """Writes a rank of the trace at `url` into the spool, from where it is copied."""

    def __init__(self, url: Url, spool: Path, info: RankInfo, *, max_bytes: int | None) -> None:
        super().__init__(spool_folder(url, spool), info, max_bytes=max_bytes)
        self.shipping = Shipping(self.folder, url / self.folder.name)

    def end_step(self, number: int) -> None:
        super().end_step(number)
        self.shipping.prepare()

    def close(self, summary: Summary) -> None:
        try:
            super().close(summary)
        finally:
            self.shipping.begin()

    def abandon(self) -> None:
        super().abandon()
        self.shipping.begin()


class Shipping:
    """The process that copies the folder of a rank; nothing here waits for it but `wait`.

    The line to it has nothing to say but its end, which comes by `begin` or with this process.
    """

    def __init__(self, folder: Path, url: Url) -> None:
        self._folder = folder
        self._url = url
        self._process: subprocess.Popen[bytes] | None = None
        self._line: socket.socket | None = None
        self._failure: Exception | None = None
        self._at_exit: Finalize | None = None

    def prepare(self) -> None:
        """From here on what was recorded is copied, also if this process is killed."""
        is_withdrawn = not (self._folder / journal.MANIFEST).exists()
        if self._at_exit is not None or is_withdrawn:
            return
        self._at_exit = Finalize(None, self.wait, exitpriority=_AFTER_OTHERS)
        try:
            self._line, its_end = socket.socketpair()
            with its_end:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", upload.__file__, str(self._folder), str(self._url)],
                    stdin=its_end.fileno(),
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,  # what a terminal sends is for the run
                )
        except OSError as error:  # hooks of a run are no place for it
            self._failure = error

    def begin(self) -> None:
        """All is written: it is copied while the run goes on."""
        self.prepare()
        if self._line is not None:
            # Children of this process may hold the line, too: closing it would not end it.
            with self._line, suppress(OSError):
                self._line.shutdown(socket.SHUT_RDWR)
            self._line = None

    def wait(self) -> None:
        """Until all is copied, or it is given up; what is wrong is said in the log."""
        self.begin()
        if self._at_exit is not None:
            self._at_exit.cancel()
        process, self._process = self._process, None
        if process is not None:
            self._failure = self._end_of(process)
        if self._failure is not None:
            log_fault(
                f"the trace was not uploaded to {self._url}; it is kept in {self._folder}: copy it "
                "there",
                self._failure,
            )

    def _end_of(self, process: subprocess.Popen[bytes]) -> Exception | None:
        """Why it failed."""
        seconds = _LEAST_SECONDS
        with suppress(OSError):  # it is removing them
            files = self._folder.iterdir()
            seconds += sum(file.stat().st_size for file in files) / _SLOWEST_BYTES
        try:
            said, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            return TimeoutError(f"it took longer than {seconds:.0f} s")
        if process.returncode == 0:
            return None
        return OSError(said.decode(errors="replace") or f"exit code {process.returncode}")


def spool_folder(url: Url, spool: Path) -> Path:
    """Where the trace at a URL is before it is uploaded: a folder of this user alone."""
    digest: str = xxhash.xxh3_64_hexdigest(str(url).encode())
    folder = spool / f"ttrace-{os.getuid()}-{digest}"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.is_symlink() or folder.stat().st_uid != os.getuid():
        raise UsageError(f"{folder} belongs to somebody else: choose another spool, TTRACE_SPOOL")
    return folder
