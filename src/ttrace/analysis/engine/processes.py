"""Processes of this machine, one pool for a whole check; one that is killed is replaced.

Workers start when a check begins, and load torch while traces are opened. A thread for each feeds
it: the next batch is packed while the worker is at the last one, and no more than these two are on
their way. What a worker had when it died is done again by another.
"""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import threading
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from socket import socketpair
from typing import NamedTuple, Self, TypeVar

from ttrace.analysis.engine.base import (
    Engine,
    FirstError,
    Job,
    JobBatch,
    JobOutcome,
    Workplace,
    batches_of,
)
from ttrace.errors import UsageError, WorkerLost

_T = TypeVar("_T")
_TRIES = 3  # chosen: of one batch; who dies again does not die by chance
_Answer = list[JobOutcome] | Exception


class Processes(Engine):
    """So many processes of this machine, each with files of its own."""

    def __init__(self, workers: int) -> None:
        if workers < 1:
            raise UsageError(f"an engine needs at least one worker, found {workers}")
        self.workers = workers
        self._idle: list[_Worker] = []
        self._is_open = False

    def __enter__(self) -> Self:
        self._is_open = True
        self._idle = [_Worker() for _ in range(self.workers)]
        return self

    def close(self) -> None:
        self._is_open = False
        while self._idle:
            self._idle.pop().end()

    def map(self, jobs: Sequence[Job[_T]], here: Workplace) -> Iterator[tuple[int, _T]]:
        work = _Work(batches_of(jobs, self.workers))
        crew = [_Feeder(work, self._worker()) for _ in range(min(len(work), self.workers))]
        for feeder in crew:
            feeder.start()
        try:
            yield from work.results()
        finally:
            work.stop()
            left = [feeder.leave() for feeder in crew]
            self._idle += [worker for worker in left if worker is not None]
            if not self._is_open:  # who asked has gone, and somebody still held what is yielded
                self.__exit__(None, None, None)

    def _worker(self) -> _Worker:
        return self._idle.pop() if self._idle else _Worker()


class _Work:
    """The batches of one call, for all feeders: those that wait, and answers as they come."""

    def __init__(self, batches: Sequence[JobBatch]) -> None:
        self._waiting = deque(batches)
        self._left = len(batches)
        self._deaths: Counter[int] = Counter()  # of workers, by the first job of their batch
        self._answers: queue.SimpleQueue[_Answer] = queue.SimpleQueue()
        self._change = threading.Condition()
        self._first = FirstError()

    def __len__(self) -> int:
        return self._left

    def results(self) -> Iterator[tuple[int, _T]]:
        while self._left:
            answer = self._answers.get()
            if isinstance(answer, Exception):
                raise answer
            self._left -= 1
            yield from self._first.results(answer)
        self._first.reraise()

    def take(self, *, wait: bool) -> JobBatch | None:
        """The next batch that is needed; None where there is none, now or for good."""
        with self._change:
            while True:
                while self._waiting:
                    batch = self._waiting.popleft()
                    if self._first.is_needed(batch):
                        return batch
                    self._answers.put([])
                if not (wait and self._left):
                    return None
                self._change.wait()

    def done(self, outcomes: list[JobOutcome]) -> None:
        self._answers.put(outcomes)

    def failed(self, error: Exception) -> None:
        self._answers.put(error)

    def again(self, batch: JobBatch, code: int, *, counts: bool) -> None:
        """A worker died over this batch: it is done next, unless that happened too often."""
        number, job = batch[0]
        self._deaths[number] += counts
        if self._deaths[number] >= _TRIES:
            self.failed(
                WorkerLost(
                    f"{_TRIES} workers died one after the other while they read {job.name}, the "
                    f"last with {_ending(code)}: mostly there is no memory left; check with fewer "
                    f"(`--workers N`), or with `--workers 1` to see what happens"
                )
            )
            return
        with self._change:
            self._waiting.appendleft(batch)
            self._change.notify()

    def stop(self) -> None:
        """Nothing waits any more."""
        with self._change:
            self._waiting.clear()
            self._left = 0
            self._change.notify_all()


class _Message(NamedTuple):
    """A batch, and as it travels. What cannot be pickled is a fault of ours, and raised."""

    batch: JobBatch
    packed: memoryview

    @classmethod
    def of(cls, batch: JobBatch | None) -> _Message | None:
        return None if batch is None else cls(batch, ForkingPickler.dumps(batch))


class _Feeder(threading.Thread):
    """Keeps one worker busy, and puts another in its place when it dies."""

    def __init__(self, work: _Work, worker: _Worker) -> None:
        super().__init__(daemon=True, name="ttrace-feeder")
        self._work = work
        self._worker = worker
        self._is_over = False

    def run(self) -> None:
        try:
            message = self._next(wait=True)
            while message is not None:
                message = self._served(message)
        except Exception as error:  # noqa: BLE001  (it is raised where the check runs)
            self._work.failed(error)

    def _next(self, *, wait: bool) -> _Message | None:
        return _Message.of(self._work.take(wait=wait))

    def _served(self, message: _Message) -> _Message | None:
        """The message that follows, which was packed while the worker was at this one."""
        following = None
        try:
            self._worker.socket.send_bytes(message.packed)
            following = self._next(wait=False)
            self._work.done(self._worker.socket.recv())
        except (EOFError, OSError):
            code = self._worker.end()
            if self._is_over:
                return None
            self._worker = _Worker()
            if following is not None:
                self._work.again(following.batch, code, counts=False)
            self._work.again(message.batch, code, counts=True)
            following = None
        return self._next(wait=True) if following is None else following

    def leave(self) -> _Worker | None:
        """The worker; none where it was at something that nobody waits for any more."""
        self._is_over = True
        self.join(timeout=0.1)  # chosen: from `take` it comes back at once
        if self.is_alive():
            self._worker.kill()
            self.join()
            return None
        return self._worker


class _Worker:
    """A process with a socket."""

    def __init__(self) -> None:
        mine, its = socketpair()
        with its:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", f"{__package__}.worker", str(its.fileno())],
                env=os.environ | {"PYTHONPATH": _path(), "OMP_NUM_THREADS": "1"},
                stdin=subprocess.DEVNULL,
                pass_fds=[its.fileno()],
            )
        self.socket = Connection(mine.detach())

    def kill(self) -> None:
        self._process.kill()

    def end(self) -> int:
        """It has nothing to finish; how it ended."""
        self._process.kill()
        self.socket.close()
        return self._process.wait()


def _path() -> str:
    """Where modules are found here, so that those of other packages are found there."""
    return os.pathsep.join(entry or os.getcwd() for entry in sys.path)  # noqa: PTH109


def _ending(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"
