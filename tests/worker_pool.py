"""A pool of gloo worker processes that live as long as the test session.

Starting four Python processes with torch takes longer than most tests; a process group takes 0.1 s.
So workers stay, and every task gets a fresh process group of the size it asks for.
"""

import gc
import importlib.util
import multiprocessing
import os
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

_TASK_SECONDS = 300.0  # chosen: the slowest task takes 20 s here; a shared machine is slower
# Chosen: groups that somebody still refers to keep threads that spin; a fresh process has none.
_MOST_THREADS = 40
_COLLECTIVE_TIMEOUT = timedelta(seconds=60)


class WorkerPool:
    """Runs a function on ranks 0..n-1 at once and returns what each returned."""

    def __init__(self, size: int) -> None:
        self._workers = [_start() for _ in range(size)]

    def run(
        self,
        world_size: int,
        function: Callable[..., Any],
        *args: Any,
        environment: dict[str, str] | None = None,
    ) -> list[Any]:
        """`function` must stand at the top level of its file: it travels by name."""
        file, name = function.__code__.co_filename, function.__qualname__
        with tempfile.TemporaryDirectory() as folder:
            store = str(Path(folder) / "store")
            for rank, (_, pipe) in enumerate(self._workers[:world_size]):
                pipe.send((file, name, args, rank, world_size, store, environment or {}))
            answers = []
            for rank, (process, pipe) in enumerate(self._workers[:world_size]):
                try:
                    stays, *answer = pipe.recv() if pipe.poll(_TASK_SECONDS) else []
                except (EOFError, ValueError):
                    raise TimeoutError(f"rank {rank} of {name} gave no answer") from None
                answers.append(answer)
                if not stays:
                    process.join()
                    self._workers[rank] = _start()
        failures = [f"rank {r}:\n{error}" for r, (ok, error) in enumerate(answers) if not ok]
        if failures:
            raise AssertionError("\n".join(failures))
        return [value for _, value in answers]

    def close(self) -> None:
        for process, pipe in self._workers:
            pipe.send(None)
            process.join(timeout=5)
            if process.is_alive():
                process.kill()


def _start() -> tuple[Any, Connection]:
    context = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
    mine, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs,), daemon=True)
    process.start()
    theirs.close()
    return process, mine


def _serve(pipe: Connection) -> None:
    import torch

    warnings.simplefilter("default")  # frameworks warn about what is none of our business
    torch.set_num_threads(1)
    torch.backends.mkldnn.set_flags(False)
    while True:
        task = pipe.recv()
        if task is None:
            return
        try:
            answer = (True, _perform(*task))
        except BaseException:  # noqa: BLE001  (whatever it is, the test must hear of it)
            answer = (False, traceback.format_exc())
        stays = _threads() <= _MOST_THREADS
        pipe.send((stays, *answer))
        if not stays:
            return


def _threads() -> int:
    tasks = Path("/proc/self/task")
    return len(list(tasks.iterdir())) if tasks.exists() else 1


def _perform(
    file: str,
    name: str,
    args: tuple[Any, ...],
    rank: int,
    world_size: int,
    store: str,
    environment: dict[str, str],
) -> Any:
    import torch.distributed as dist

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
        return function(*args)
    finally:
        # Models in reference cycles would keep groups alive, whose threads then spin forever.
        gc.collect()
        dist.destroy_process_group()
        os.environ.clear()
        os.environ |= before


def _load(file: str, name: str) -> Callable[..., Any]:
    module_name = f"pooled_{Path(file).stem}"
    module = sys.modules.get(module_name)
    if module is None:
        spec = importlib.util.spec_from_file_location(module_name, file)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[module_name] = module
        spec.loader.exec_module(module)
    function = module
    for part in name.split("."):
        function = getattr(function, part)
    return function  # type: ignore[return-value]
