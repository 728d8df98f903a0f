"""All ranks of a function in this process, each in a thread, from the first to the last.

Enters: a function, and on how many ranks it runs. Leaves: what it returned on each. A rank that
raises ends all others where they wait. The process is not to be used for anything else after that:
torch caches what it knows of meshes by thread.
"""

from __future__ import annotations

import random
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as compiled
from torch._C._distributed_c10d import HashStore
from torch.distributed import distributed_c10d
from torch.distributed.device_mesh import DeviceMesh

from ttrace.adapters.patching import replaced, resume_patches, suspend_patches
from ttrace.capture.tracer import finish_steps
from ttrace.core.simulated import become_simulated_rank
from ttrace.lab.simulated import SimulationFailed
from ttrace.lab.simulated.group import SimulatedGroup
from ttrace.lab.simulated.meetings import Meetings
from ttrace.lab.simulated.turns import Abandoned, Turns

_STORE_TIMEOUT = timedelta(seconds=5)  # chosen: nobody else runs while a rank waits for a store
# Frameworks that keep what belongs to a rank in variables of their modules.
_OF_PROCESS = ("megatron.core.parallel_state", "deepspeed")


@contextmanager
def put_aside() -> Iterator[None]:
    """While open, another rank may run in this process, of which there is one of some things.

    Put aside are random numbers of torch, Python and numpy, as every process has its own, and what
    TTrace replaced for this rank. Variables of the script's own modules stay: all ranks share them.
    """
    suspend_patches()
    drawn = RandomState.now()
    try:
        yield
    finally:
        drawn.restore()
        resume_patches()


class RandomState:
    """How far the random numbers of a rank are."""

    def __init__(self, tensors: torch.Tensor, python: object, arrays: object) -> None:
        self._tensors, self._python, self._arrays = tensors, python, arrays

    @classmethod
    def now(cls) -> RandomState:
        return cls(torch.get_rng_state(), random.getstate(), np.random.get_state())

    def restore(self) -> None:
        torch.set_rng_state(self._tensors)
        random.setstate(self._python)  # type: ignore[arg-type]
        np.random.set_state(self._arrays)  # type: ignore[arg-type]


def simulate(
    world_size: int, function: Callable[..., Any], args: tuple[Any, ...], timeout_seconds: float
) -> list[Any]:
    """What the function returned on each rank."""
    turns = Turns(world_size, put_aside)
    ranks = [_Rank(rank, world_size, function, args, turns) for rank in range(world_size)]
    store = HashStore()
    store.set_timeout(_STORE_TIMEOUT)
    with _many_worlds(Meetings(turns)):
        threads = [
            threading.Thread(target=rank.live, args=(store,), name=f"rank-{rank.rank}", daemon=True)
            for rank in ranks
        ]
        for thread in threads:  # all at once: meshes are told apart by the ids of threads
            thread.start()
        turns.start()
        if not turns.all_ended.wait(timeout_seconds):
            raise SimulationFailed(_too_late(turns, threads, timeout_seconds))
        for thread in threads:
            thread.join()
    failures = [f"rank {rank.rank}:\n{rank.failure}" for rank in ranks if rank.failure]
    if failures or turns.deadlock:
        hint = _hint()
        raise SimulationFailed("\n".join([*failures, *filter(None, [turns.deadlock, hint])]))
    return [rank.answer for rank in ranks]


class _Rank:
    """One rank, and how it ended."""

    def __init__(
        self,
        rank: int,
        world_size: int,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        turns: Turns,
    ) -> None:
        self.rank = rank
        self.answer: Any = None
        self.failure: str | None = None
        self._world_size = world_size
        self._function, self._args, self._turns = function, args, turns

    def live(self, store: HashStore) -> None:
        become_simulated_rank()
        torch.set_num_threads(1)
        try:
            self._turns.begin(self.rank)
            dist.init_process_group(
                "gloo", store=store, rank=self.rank, world_size=self._world_size
            )
            self.answer = self._function(*self._args)
            finish_steps()
            dist.destroy_process_group()
        except Abandoned:
            pass
        except BaseException as error:  # noqa: BLE001  (whatever it is, the caller must hear of it)
            if not _is_abandoned(error):
                self.failure = traceback.format_exc()
                self._turns.stop()
        finally:
            suspend_patches()
            self._turns.end(self.rank)


def _is_abandoned(error: BaseException | None) -> bool:
    """C++ makes exceptions of its own from those that pass through it."""
    while error is not None:
        if isinstance(error, Abandoned) or Abandoned.__name__ in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False


class _OfThread:
    """The id by which meshes are told apart: of the thread that made one, as for torch's tests."""

    def __set__(self, mesh: Any, value: object) -> None:
        mesh.__dict__["_thread_id"] = threading.get_ident()

    def __get__(self, mesh: Any, owner: type) -> Any:
        return None if mesh is None else mesh.__dict__.get("_thread_id")


@contextmanager
def _many_worlds(meetings: Meetings) -> Iterator[None]:
    """While open, every thread has its own groups, and gloo's are simulated."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.testing._internal.distributed.multi_threaded_pg import ThreadLocalWorld

    # DTensor makes fake tensors. Where a build for GPUs finds none, torch puts something in place
    # of their guard then; measured with 2.11: done first by a rank's thread, the process crashes.
    with FakeTensorMode():
        pass
    group = type("SimulatedGroup", (SimulatedGroup,), {"meetings": meetings})
    # Torch 2.11 goes through communicators of other packages when groups are destroyed, and forgot
    # them in what its own tests use.
    world = type("World", (ThreadLocalWorld,), {"comms": property(lambda _: [])})()
    isolate: Any = vars(compiled)["_set_thread_isolation_mode"]
    isolate(True)  # noqa: FBT003
    try:
        with (
            replaced(distributed_c10d, "_world", world),
            replaced(distributed_c10d, "ProcessGroupGloo", group),
            replaced(DeviceMesh, "_thread_id", _OfThread()),
        ):
            yield
    finally:
        isolate(False)  # noqa: FBT003


def _too_late(turns: Turns, threads: list[threading.Thread], timeout_seconds: float) -> str:
    """Where the rank stands that has the turn: no other can be the reason."""
    rank = turns.running
    frame = sys._current_frames().get(threads[rank].ident or 0)  # noqa: SLF001
    stack = "".join(traceback.format_stack(frame)) if frame is not None else "it has ended\n"
    return f"no end after {timeout_seconds:g} s; rank {rank} runs, and all others wait:\n{stack}"


def _hint() -> str | None:
    for name in _OF_PROCESS:
        if name in sys.modules:
            return (
                f"{name} keeps the groups of a rank in variables of the process, so that ranks "
                "cannot share one: run them as processes (simulated=False)"
            )
    return None
