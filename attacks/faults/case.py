"""One run of a program in processes of its own, with or without tracing, with or without a fault.

Enters: a program, and the fault of its first rank. Leaves: what it computed, said and left behind.
"""

from __future__ import annotations

import hashlib
import multiprocessing.util
import os
import pickle
import signal
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.pipelining import stage as pipeline_stage
from torch.distributed.tensor import DTensor
from torch.nn.utils import clip_grad
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from attacks.faults.places import Counted, Fault, Raising
from attacks.faults.programs import Attacked, Outcome
from ttrace.capture import outbox
from ttrace.capture.guard import Hook
from ttrace.capture.settings import Settings, without_settings
from ttrace.core.record import Summary
from ttrace.trace.progress import read_refusals
from ttrace.trace.reader import Trace

_SECONDS = 60  # chosen: a run takes a tenth of one; whoever waits longer waits for a rank that left


@dataclass(slots=True)
class Ran:
    """What one rank of a run did."""

    error: str = ""  # that ended it
    digest: str = ""  # of its numbers
    left: tuple[str, ...] = ()
    has_fired: bool = False
    counted: Counted | None = None


@dataclass(slots=True)
class Traced:
    """What is in its trace."""

    records: frozenset[tuple[str, ...]] = frozenset()
    has_end: bool = False
    told: tuple[str, ...] = ()  # faults, and why it could not be traced


@dataclass(slots=True)
class CaseResult:
    """What a run did, on all its ranks."""

    ranks: Sequence[Ran]
    log: str
    trace: Traced = field(default_factory=Traced)

    @property
    def digest(self) -> str:
        return " ".join(each.digest for each in self.ranks)


def run(
    program: Attacked,
    folder: Path,
    *,
    is_traced: bool = True,
    plan: Path | None = None,
    fault: Fault | None = None,
    counts: bool = False,
) -> CaseResult:
    """Run it to its end in `folder`, which is empty."""
    environment = without_settings(os.environ)
    if is_traced:
        settings = Settings(folder=folder / "trace", **program.settings)
        environment |= replace(settings, plan=plan).to_environment()
    started = [
        _start(program, rank, folder, environment, fault if rank == 0 else None, counts=counts)
        for rank in range(max(1, program.ranks))
    ]
    ranks = [_wait(*each) for each in started]
    log = (folder / "stderr").read_text(errors="replace")
    return CaseResult(ranks, log, _read(folder / "trace") if is_traced else Traced())


def _start(
    program: Attacked,
    rank: int,
    folder: Path,
    environment: dict[str, str],
    fault: Fault | None,
    *,
    counts: bool,
) -> tuple[int, int]:
    mine, theirs = os.pipe()
    process = os.fork()
    if process:
        os.close(theirs)
        return process, mine
    os.close(mine)
    ran = Ran(error="it did not come to its end")
    try:
        signal.alarm(_SECONDS)
        errors = os.open(folder / "stderr", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        os.dup2(errors, 2)
        os.close(errors)
        os.environ.clear()
        os.environ.update(environment)
        ran = _train(program, rank, folder, fault, counts=counts)
    except BaseException:  # noqa: BLE001  (whatever it is, it ends here)
        ran = Ran(error=traceback.format_exc())
    finally:
        try:
            with os.fdopen(theirs, "wb") as pipe:
                pickle.dump(ran, pipe)
        finally:
            os._exit(0)


def _wait(process: int, pipe: int) -> Ran:
    with os.fdopen(pipe, "rb") as file:
        answer = file.read()
    _, status = os.waitpid(process, 0)
    if not answer:
        return Ran(error=f"it died: {os.waitstatus_to_exitcode(status)}")
    ran: Ran = pickle.loads(answer)  # noqa: S301  (of our own child)
    return ran


def _train(program: Attacked, rank: int, folder: Path, fault: Fault | None, *, counts: bool) -> Ran:
    if program.ranks:
        store = dist.FileStore(  # type: ignore[attr-defined]
            str(folder / "store"), program.ranks
        )
        dist.init_process_group("gloo", store=store, rank=rank, world_size=program.ranks)
    if program.by_threads:
        vars(outbox)["_HANDED_BYTES"] = 0
    before = _patchable()
    ran = Ran(counted=Counted() if counts else None)
    raising = None if fault is None else Raising(fault)
    with ExitStack() as watched:
        if ran.counted is not None:
            watched.enter_context(ran.counted.counting())
        if raising is not None:
            watched.enter_context(raising.armed())
        try:
            done = program.train()
        except Exception:  # noqa: BLE001  (it is the finding)
            ran.error = traceback.format_exc()
            done = Outcome()
        watched.close()
        ran.left = tuple(_left(done, before, folder))
    finish: Any = multiprocessing.util._run_finalizers  # type: ignore[attr-defined]  # noqa: SLF001
    finish(0)  # as at the end of a process
    ran.digest = _digest(done)
    ran.has_fired = raising is not None and raising.has_fired
    if program.ranks:
        dist.destroy_process_group()
    return ran


def _digest(done: Outcome) -> str:
    digest = hashlib.sha256()
    for number in done.numbers:
        if isinstance(number, str):
            digest.update(number.encode())
        else:
            digest.update(f"{number.dtype} {tuple(number.shape)}".encode())
            digest.update(number.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _patchable() -> dict[tuple[str, str], Any]:
    """Everything of torch that a trace, or an adapter of this machine, could have replaced."""
    owners: tuple[Any, ...] = (
        *(torch.autograd, torch.Tensor, nn.Module, nn.Linear, clip_grad, torch.amp.GradScaler),
        *(DTensor, FullyShardedDataParallel, pipeline_stage, torch.optim.Optimizer),
        pipeline_stage._PipelineStageBase,  # noqa: SLF001
    )
    found = {
        (owner.__name__, name): value for owner in owners for name, value in vars(owner).items()
    }
    for name, value in vars(clip_grad).items():
        for number, cell in enumerate(getattr(value, "__closure__", None) or ()):
            found[name, str(number)] = cell.cell_contents
    return found


def _left(done: Outcome, before: dict[tuple[str, str], Any], folder: Path) -> Iterator[str]:
    """What a tracer left on objects of the run, and in its process."""
    after = _patchable()
    for key in before.keys() | after.keys():
        # A Tensor's methods are made when they are first asked for.
        if key in before and before[key] is not after.get(key, ...):
            yield f"the patch of {'.'.join(key)}"
    for owner in _hooked(done):
        yield from (f"a hook on {type(owner).__name__}" for _ in range(_hooks_on(owner)))
    for link in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            target = link.readlink()
            if target.is_relative_to(folder) and target.name not in ("stderr", "store"):
                yield f"the open file {target.name}"
    others = [
        thread.name for thread in threading.enumerate() if thread is not threading.main_thread()
    ]
    yield from (f"the thread {name}" for name in others)
    yield from (f"the mode {type(mode).__name__}" for mode in _get_current_dispatch_mode_stack())
    if not torch.is_grad_enabled():
        yield "autograd, which is off"


def _hooked(done: Outcome) -> Iterator[Any]:
    for model in done.models:
        yield from model.modules()
        yield from model.parameters()
    yield from done.optimizers


def _hooks_on(owner: Any) -> int:
    tables = (value for name, value in _attributes(owner) if name.endswith("_hooks"))
    return sum(isinstance(hook, Hook) for table in tables for hook in (table or {}).values())


def _attributes(owner: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(owner, torch.Tensor):
        yield "_backward_hooks", owner._backward_hooks  # noqa: SLF001
    else:
        yield from vars(owner).items()


def _told(summary: Summary) -> Iterator[str]:
    yield from summary.faults
    yield from (note for note in summary.notes if "left in its order" in note)


def _read(folder: Path) -> Traced:
    told = read_refusals(folder)
    try:
        ranks = list(Trace.open(folder).ranks.values())
    except Exception as error:  # noqa: BLE001  (a trace that was given up may be none)
        return Traced(told=(*told, *([] if told else [f"no trace: {error}"])))
    summaries = [rank.summary for rank in ranks]
    return Traced(
        records=frozenset(
            (str(r.id), str(r.rank), str(r.microbatch), r.location.xxh3 if r.location else "")
            for rank in ranks
            for r in rank.records
        ),
        has_end=all(summary is not None for summary in summaries),
        told=(*told, *(text for summary in summaries if summary for text in _told(summary))),
    )
