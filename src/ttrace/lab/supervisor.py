"""Runs one command and leaves nothing of it behind: a program of its own, beside ttrace.

    python -I -S supervisor.py PARENT GRACE_SECONDS STAYS PROGRAM ARGUMENT...

Enters: a command, and its log as standard error. Leaves on standard output one line, `ended CODE`
as soon as the command has, or `failed ERRNO` when it could not be started; then the end of this
process, once everything that the command started is gone. A signal to end, or the death of the
process PARENT, stops the command before. What it leaves running is ended when the command ends, or
where STAYS is 1 not before such a signal: a run may be more than the command that starts it.

On Linux orphans of the command become children of this process, whatever session, group and
environment they have, and are found in /proc. Elsewhere the process group of the command is ended.
It must know nothing but the standard library, and little of that: it is started for every run.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import sys
import time
from collections.abc import Callable

Identity = tuple[int, str]  # a process: its id, which another may have later, and when it began
Alive = dict[Identity, str]  # processes, with their names
Find = Callable[[], Alive]
Send = Callable[[Identity, int], None]

_PROC = "/proc"
LOOK_SECONDS = 0.25  # chosen: how long a death of the parent, or a full log, stays unnoticed
_POLL_SECONDS = 0.01
HELPERS_SECONDS = 0.2  # chosen: helpers of Python end by themselves within milliseconds
_KEPT_FIRST_BYTES = 1 << 20  # chosen: how a run began
_KEPT_LAST_BYTES = 64 << 20  # chosen: more than anybody reads of how it ended
_SPARED_BYTES = 16 << 20  # freed at a time
_COPIED_BYTES = 1 << 20
_NOBODY = -1  # no process has this id
_TO_END = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
# linux/prctl.h, linux/falloc.h
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_PUNCH_HOLE_KEEP_SIZE = 3


def adopt_orphans() -> None:
    """Make this process, on Linux, the parent of every descendant that loses its own."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def descendants(*roots: int) -> Alive:
    """All that run below these processes, parents first; nothing where there is no /proc."""
    children: dict[int, list[tuple[Identity, str, bool]]] = {}
    for entry in os.listdir(_PROC) if os.path.isdir(_PROC) else ():
        with contextlib.suppress(OSError, ValueError, IndexError):
            parent, process, name, is_running = _look(int(entry))
            children.setdefault(parent, []).append((process, name, is_running))
    found: Alive = {}
    parents = list(roots)
    while parents:
        for process, name, is_running in children.pop(parents.pop(), ()):
            parents.append(process[0])
            if is_running:
                found[process] = name
    return found


def running(processes: Alive) -> Alive:
    """Those of these processes that are there still, and what runs below them."""
    found = {process: name for process, name in processes.items() if _is_there(process)}
    return found | descendants(*(pid for pid, _ in found))


def end(find: Find, sign: int, seconds: float, send: Send | None = None) -> Alive:
    """Send a signal to all that are found, once to each, until none is; those left in the end.

    In the order in which they are found: parents first. A launcher whose ranks were ended before it
    would end with them, and not say why.
    """
    deadline = time.monotonic() + seconds
    told: set[Identity] = set()
    while left := find():
        for process in left:
            if process not in told:
                (send or _send)(process, sign)
        told |= left.keys()
        if time.monotonic() >= deadline:
            break
        time.sleep(_POLL_SECONDS)
    return left


def _look(pid: int) -> tuple[int, Identity, str, bool]:
    """The parent of a process, which one it is, its name, and whether it runs: no zombie."""
    with open(f"{_PROC}/{pid}/stat", "rb") as file:
        head, _, tail = file.read().rpartition(b")")
    fields = tail.split()  # from the third on of proc(5): state, parent, ...
    state, parent, threads, began = fields[0], fields[1], fields[17], fields[19]
    name = head.partition(b"(")[2].decode(errors="backslashreplace")
    # A first thread that ended before the others looks like a zombie.
    return int(parent), (pid, began.decode()), name, state not in b"ZX" or int(threads) > 1


def _is_there(process: Identity) -> bool:
    with contextlib.suppress(OSError, ValueError, IndexError):
        _, found, _, is_running = _look(process[0])
        return found == process and is_running
    return False


def _send(process: Identity, sign: int) -> None:
    """Signal this process and no other that has its id since."""
    pid = process[0]
    handle = None
    with contextlib.suppress(OSError):  # it has gone, or it runs as another user
        if hasattr(os, "pidfd_open"):
            with contextlib.suppress(OSError):  # before Linux 5.3
                handle = os.pidfd_open(pid)
        try:
            if not _is_there(process):
                return
            if handle is None:
                os.kill(pid, sign)
            else:
                signal.pidfd_send_signal(handle, sign)
        finally:
            if handle is not None:
                os.close(handle)


def _group(leader: int) -> tuple[Find, Send]:
    """A process group as if it were one process: what can be found where there is no /proc."""

    def find() -> Alive:
        _reap(leader)
        with contextlib.suppress(OSError):
            os.killpg(leader, 0)
            return {(leader, ""): "process group"}
        return {}

    def send(group: Identity, sign: int) -> None:
        with contextlib.suppress(OSError):
            os.killpg(group[0], sign)

    return find, send


def _supervise(
    parent: int, grace_seconds: float, command: list[str], *, stays: bool = False
) -> None:
    news, log = os.dup(1), 2
    os.dup2(log, 1)
    woken, ignored = _wake_on_signals()
    adopt_orphans()
    try:
        child = _start(command, news, ignored)
    except OSError as error:  # too many processes
        os.write(news, b"failed %d\n" % (error.errno or 0))
        return
    code = None
    try:
        code, is_to_end = _watch(child, parent, woken, log)
        if code is not None:
            with contextlib.suppress(OSError):  # nobody listens any more
                os.write(news, b"ended %d\n" % code)
            if stays and not is_to_end:
                _watch(_NOBODY, parent, woken, log)
    finally:
        _clear(child, log, grace_seconds, by_itself=code is not None and not stays)
    with contextlib.suppress(OSError):  # a full disk
        _shorten(log)


def _watch(child: int, parent: int, woken: int, log: int) -> tuple[int | None, bool]:
    """The exit code of the command, None while it runs; and whether all is to be stopped.

    Both may be true at once: a command that could not be started is stopped when it has ended.
    """
    freed = _KEPT_FIRST_BYTES
    while os.getppid() == parent:
        freed = _spare(log, freed)
        numbers = b""
        if select.select([woken], [], [], LOOK_SECONDS)[0]:
            numbers = os.read(woken, 1 << 10)
        code = _reap(child)
        is_to_end = any(number in _TO_END for number in numbers)
        if code is not None or is_to_end:
            return code, is_to_end
    return None, True


def _wake_on_signals() -> tuple[int, list[int]]:
    """A descriptor from which the numbers of signals are read, and which were ignored before."""
    woken, wake = os.pipe()
    for either in (woken, wake):
        os.set_blocking(either, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    numbers = (*_TO_END, signal.SIGCHLD)
    ignored = [int(n) for n in numbers if signal.getsignal(n) == signal.SIG_IGN]
    for number in numbers:
        signal.signal(number, lambda *_: None)
    return woken, ignored


def _start(command: list[str], news: int, ignored: list[int]) -> int:
    supervisor = os.getpid()
    child = os.fork()  # no thread has been started that could hold a lock
    if child:
        return child
    try:
        os.setsid()
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != supervisor:
            os._exit(1)
        # As subprocess does it: what Python ignores, a command does not, unless it did before.
        for number in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        for other in ignored:
            signal.signal(other, signal.SIG_IGN)
        os.execvp(command[0], command)
    except OSError as error:
        os.write(news, b"failed %d\n" % (error.errno or 0))
    finally:
        os._exit(127)


def _reap(child: int) -> int | None:
    """Collect all that ended, orphans too; the exit code of the command, if that is among them."""
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == child:
                return os.waitstatus_to_exitcode(status)
            if pid == 0:
                return None
    return None


def _clear(child: int, log: int, grace_seconds: float, *, by_itself: bool) -> None:
    """End what is left; one that is asked to end has time to say where it was."""
    me = os.getpid()
    find, send = (lambda: descendants(me), _send) if os.path.isdir(_PROC) else _group(child)
    if by_itself and (left := end(find, 0, HELPERS_SECONDS, send)):
        _say(log, "the command ended and left these running, which are ended now", left)
    if end(find, signal.SIGTERM, grace_seconds, send) and (
        left := end(find, signal.SIGKILL, grace_seconds, send)
    ):
        _say(log, "these could not be ended, not even by SIGKILL", left)


def _say(log: int, what: str, processes: Alive) -> None:
    names = ", ".join(f"{name} (process {pid})" for (pid, _), name in sorted(processes.items()))
    with contextlib.suppress(OSError):
        os.write(log, f"\nttrace: {what}: {names}\n".encode())


def _spare(log: int, freed: int) -> int:
    """Give bytes of a long log back to the file system: those after its start, up to its end.

    The command writes into the file itself, so nothing between them can slow or break it. Where a
    file system cannot do this, the log grows until the run ends.
    """
    last = os.fstat(log).st_size - _KEPT_LAST_BYTES
    if last - freed < _SPARED_BYTES or sys.platform != "linux":
        return freed
    offset, length = ctypes.c_long(freed), ctypes.c_long(last - freed)
    failed = ctypes.CDLL(None).fallocate(log, _PUNCH_HOLE_KEEP_SIZE, offset, length)
    return freed if failed else last


def _shorten(log: int) -> None:
    """Take the middle out of a long log; a line says how much that was."""
    size = os.fstat(log).st_size
    source = size - _KEPT_LAST_BYTES
    if source < _KEPT_FIRST_BYTES + _COPIED_BYTES:
        return
    left_out = source - _KEPT_FIRST_BYTES
    part = f"\nttrace: {left_out:,} bytes of output were here and are not kept\n".encode()
    target = _KEPT_FIRST_BYTES
    while part:
        target += os.pwrite(log, part, target)
        part = os.pread(log, _COPIED_BYTES, source)
        source += len(part)
    os.ftruncate(log, target)
    os.lseek(log, 0, os.SEEK_END)


if __name__ == "__main__":
    parent_, grace_, stays_, *command_ = sys.argv[1:]
    _supervise(int(parent_), float(grace_), command_, stays=stays_ == "1")
    os._exit(0)  # sooner: somebody waits for it
