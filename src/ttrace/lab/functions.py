"""Worker processes that run functions in gloo process groups, one fresh group for every task.

Starting Python with torch takes longer than most tests; a process group takes 0.1 s. So workers
stay. Enters: a function at the top level of its file, which travels by name. Leaves: what it
returned on every rank. Ranks that are simulated all run in one worker, which ends with them.
"""

from __future__ import annotations

import atexit
import gc
import importlib.util
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from ttrace.errors import CommandFailed
from ttrace.lab.run import Function, TracedRun, require_recorded
from ttrace.lab.simulated import SimulationFailed
from ttrace.lab.supervised import GRACE_SECONDS
from ttrace.lab.supervisor import (
    HELPERS_SECONDS,
    LOOK_SECONDS,
    adopt_orphans,
    descendants,
    end,
    running,
)

TASK_SECONDS = 300.0  # chosen: a step of a small model takes seconds; a shared machine is slower
# Chosen: who waits for a rank that failed hears of it from gloo after a minute, or never.
_AFTER_FAILURE_SECONDS = 90.0
# Chosen: groups that somebody still refers to keep threads that spin; a fresh process has none.
_MOST_THREADS = 40

Worker = tuple[Any, Connection]  # a process, and the pipe to it
_COLLECTIVE_TIMEOUT = timedelta(seconds=60)  # chosen: a rank that never comes is noticed


def run_function(run: TracedRun, function: Function, pool: WorkerPool) -> None:
    """Run on all ranks to the end or to the time limit, with tracing on."""
    on_ranks = pool.simulate if function.simulated else pool.run
    try:
        on_ranks(
            function.ranks,
            function.train,
            *function.arguments,
            environment=run.settings.to_environment(),
            timeout_seconds=run.timeout_seconds,
        )
    except (AssertionError, TimeoutError) as error:
        raise CommandFailed(f"the {run.name} function failed. {error}") from error
    require_recorded(run)


class WorkerPool:
    """Runs a function on ranks 0..n-1 at once and returns what each returned.

    It starts with `size` workers and with more of them when a function needs more. `fresh`: every
    function gets new processes, which know nothing of what others left in global variables.
    """

    def __init__(
        self, size: int = 0, prepare: Callable[[], None] | None = None, *, fresh: bool = False
    ) -> None:
        self._prepare = prepare
        self._fresh = fresh
        self._owner = os.getpid()
        self._workers = [self._start() for _ in range(size)]
        atexit.register(self._abandon)  # before multiprocessing ends workers, and them alone

    def run(
        self,
        world_size: int,
        function: Callable[..., Any],
        *args: Any,
        environment: dict[str, str] | None = None,
        timeout_seconds: float = TASK_SECONDS,
    ) -> list[Any]:
        """`function` must stand at the top level of its file: it travels by name."""
        self._workers += [self._start() for _ in range(world_size - len(self._workers))]
        file, name = function.__code__.co_filename, function.__qualname__
        with tempfile.TemporaryDirectory() as folder:
            store = str(Path(folder) / "store")
            for rank, (_, pipe) in enumerate(self._workers[:world_size]):
                task = (file, name, args, rank, world_size, store, environment or {})
                pipe.send((perform_rank, task))
            answers: list[tuple[bool, Any]] = []
            try:
                for rank in range(world_size):
                    has_failed = not all(is_value for is_value, _ in answers)
                    patience = min(timeout_seconds, _AFTER_FAILURE_SECONDS)
                    limit = patience if has_failed else timeout_seconds
                    answers.append(self._answer(rank, name, limit))
            except TimeoutError as error:
                raise TimeoutError("\n".join([str(error), *_failures(answers)])) from None
        if failures := _failures(answers):
            raise AssertionError("\n".join(failures))
        return [value for _, value in answers]

    def simulate(
        self,
        world_size: int,
        function: Callable[..., Any],
        *args: Any,
        environment: dict[str, str] | None = None,
        timeout_seconds: float = TASK_SECONDS,
    ) -> list[Any]:
        """The same with all ranks in one process: slower for few of them, and small for many."""
        file, name = function.__code__.co_filename, function.__qualname__
        worker = self._start()
        _, pipe = worker
        try:
            task = (file, name, args, world_size, environment or {}, timeout_seconds)
            pipe.send((perform_simulated, task))
            if not pipe.poll(timeout_seconds + GRACE_SECONDS):
                raise TimeoutError(f"{name} on simulated ranks gave no answer")
            _, is_value, answer = pipe.recv()
        except EOFError:
            raise AssertionError(f"the process of {name} on simulated ranks died") from None
        finally:
            _dismiss([worker], politely=True)
        if not is_value:
            raise AssertionError(answer)
        values: list[Any] = answer
        return values

    def _start(self) -> Worker:
        context = multiprocessing.get_context(_start_method())
        mine, theirs = context.Pipe()
        process = context.Process(  # type: ignore[attr-defined]
            target=_serve, args=(theirs, self._prepare, os.getpid()), daemon=True
        )
        process.start()
        theirs.close()
        return process, mine

    def _answer(self, rank: int, name: str, timeout_seconds: float) -> tuple[bool, Any]:
        _, pipe = self._workers[rank]
        try:
            if not pipe.poll(timeout_seconds):
                raise EOFError
            stays, is_value, answer = pipe.recv()
        except EOFError:
            self._restart()  # late answers must not be taken for those of the next task
            raise TimeoutError(f"rank {rank} of {name} gave no answer") from None
        if self._fresh or not stays:
            _dismiss([self._workers[rank]], politely=True)
            self._workers[rank] = self._start()
        return is_value, answer

    def _restart(self) -> None:
        _dismiss(self._workers, politely=False)
        self._workers = [self._start() for _ in self._workers]

    def close(self) -> None:
        """End all workers, and what functions started in them and left running."""
        atexit.unregister(self._abandon)
        _dismiss(self._workers, politely=True)
        self._workers = []

    def _abandon(self) -> None:
        if os.getpid() == self._owner:  # not in a process that was forked from it
            _dismiss(self._workers, politely=False)


def _failures(answers: Sequence[tuple[bool, Any]]) -> list[str]:
    return [f"rank {r}:\n{error}" for r, (is_value, error) in enumerate(answers) if not is_value]


def _dismiss(workers: Sequence[Worker], *, politely: bool) -> None:
    """End workers and all that runs below them; politely: after what they are at."""
    below = descendants(*(process.pid for process, _ in workers))
    for process, pipe in workers:
        if not politely:
            process.kill()
        with suppress(OSError):
            pipe.send(None)
    deadline = time.monotonic() + GRACE_SECONDS
    for process, pipe in workers:
        process.join(max(0.0, deadline - time.monotonic()))
        if process.is_alive():
            process.kill()
            process.join()
        pipe.close()
    # What helps multiprocessing ends by itself now, and tidies up.
    if end(lambda: running(below), 0, HELPERS_SECONDS):
        end(lambda: running(below), signal.SIGKILL, GRACE_SECONDS)


@cache
def shared_pool() -> WorkerPool:
    """One for all that runs in this process; its workers end with it."""
    return WorkerPool()


def _start_method() -> str:
    import torch

    # A CUDA context does not survive a fork, and macOS' system libraries do not either.
    return "fork" if sys.platform == "linux" and not torch.cuda.is_initialized() else "spawn"


def _serve(pipe: Connection, prepare: Callable[[], None] | None, parent: int) -> None:
    import torch

    adopt_orphans()
    threading.Thread(target=_die_with, args=(parent,), daemon=True).start()
    warnings.simplefilter("default")  # frameworks warn about what is none of the test's business
    # A forked OpenMP must not start threads; and trainers set what the environment leaves open.
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"
    if prepare is not None:
        prepare()
    while True:
        try:
            task = pipe.recv()
        except EOFError:  # nobody has the other end any more
            return
        if task is None:
            return
        try:
            perform, given = task
            answer = (True, perform(*given))
        except SimulationFailed as error:
            answer = (False, str(error))
        except BaseException:  # noqa: BLE001  (whatever it is, the test must hear of it)
            answer = (False, traceback.format_exc())
        # Only the pool may dismiss it: tensors in the answer are fetched from this process.
        pipe.send((_threads() <= _MOST_THREADS, *answer))


def _die_with(parent: int) -> None:
    """End this worker and all below it when the process that made it is gone, however it ended.

    A thread: the kernel's own signal would come as well when only the thread that made it ends.
    """
    me = os.getpid()
    while os.getppid() == parent:
        time.sleep(LOOK_SECONDS)
    end(lambda: descendants(me), signal.SIGKILL, GRACE_SECONDS)
    os.kill(me, signal.SIGKILL)


def _threads() -> int:
    tasks = Path("/proc/self/task")  # on Linux; elsewhere they are not counted
    return len(list(tasks.iterdir())) if tasks.exists() else 1


def perform_rank(
    file: str,
    name: str,
    args: tuple[Any, ...],
    rank: int,
    world_size: int,
    store: str,
    environment: dict[str, str],
) -> Any:
    """What the function returned here, on one rank of a gloo process group."""
    import torch.distributed as dist

    from ttrace.capture.tracer import finish_steps

    function = _load(file, name)
    before = dict(os.environ)
    os.environ |= environment
    dist.init_process_group(
        "gloo",
        init_method=f"file://{store}",
        rank=rank,
        world_size=world_size,
        timeout=_COLLECTIVE_TIMEOUT,
    )
    try:
        answer = function(*args)
        finish_steps()
        return answer
    finally:
        # Models in reference cycles would keep groups alive, whose threads then spin forever.
        gc.collect()
        dist.destroy_process_group()
        os.environ.clear()
        os.environ |= before


def perform_simulated(
    file: str,
    name: str,
    args: tuple[Any, ...],
    world_size: int,
    environment: dict[str, str],
    timeout_seconds: float,
) -> list[Any]:
    """What the function returned on all ranks, which this process simulates."""
    from ttrace.lab.simulated.world import simulate

    os.environ |= environment  # for good: this process does nothing else
    return simulate(world_size, _load(file, name), args, timeout_seconds)


def _load(file: str, name: str) -> Callable[..., Any]:
    module_name = f"pooled_{Path(file).stem}"
    module = sys.modules.get(module_name)
    if module is None or getattr(module, "__file__", None) != file:
        spec = importlib.util.spec_from_file_location(module_name, file)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[module_name] = module
        spec.loader.exec_module(module)
    function: Any = module
    for part in name.split("."):
        function = getattr(function, part)
    return function
