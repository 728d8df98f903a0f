"""One traced run: what runs, how it is traced, and who can run it.

    TracedRun(name="candidate", work="torchrun --nproc-per-node 4 train.py", settings=Settings(...))
    TracedRun(name="candidate", work=Function(train, ranks=4), settings=Settings(...))

An executor is the place to add another way to run something: a scheduler, a container, machines
that are rented. It gets a TracedRun and returns when the trace is on disk.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from ttrace.capture.settings import Settings, spool_of
from ttrace.capture.shipping import spool_folder
from ttrace.errors import CommandFailed
from ttrace.lab.options import Elsewhere
from ttrace.trace.files import files_of, rank_names
from ttrace.trace.progress import read_refusals
from ttrace.trace.store import PathOrUrl, Url

HOW_TO_ATTACH = (
    "recorded nothing: its script must call `tracer = ttrace.attach(model, optimizer)` and run its "
    "step inside `with tracer.step():`, or add `TTraceCallback()` of ttrace.integrations to the "
    "callbacks of its trainer."
)
Command = str | Sequence[str]  # a string is run by the shell, a list as it is


@dataclass(frozen=True, slots=True)
class Function:
    """A training function on so many ranks; it stands at the top level of its file.

    `simulated`: they share one process on the CPU, so that a laptop can run many of them.
    """

    train: Callable[..., object]
    ranks: int = 1
    arguments: tuple[Any, ...] = ()
    simulated: bool = False


Work = Command | Function


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedRun:
    """What runs, under which name people are told of it, and how it is traced.

    `shared`: other launchers of the same run, on other machines say, write into the same folder.
    `to_end`: a command is not stopped when all steps are recorded.
    `then`: how many runs are known to follow; what they say may lead to more.
    `elsewhere`: what is known of ranks that run elsewhere; `tell` hears how many have ended.
    """

    name: str
    work: Work
    settings: Settings
    timeout_seconds: float = 1800.0
    shared: bool = False
    to_end: bool = False
    then: int = 0
    elsewhere: Elsewhere = Elsewhere()
    tell: Callable[[str], None] | None = None

    @property
    def folder(self) -> PathOrUrl:
        return self.settings.folder

    @property
    def spool(self) -> Path | None:
        """Where a trace that is behind a URL is until it is copied: a folder of this run alone."""
        if not isinstance(self.folder, Url):
            return None
        return (spool_folder(self.folder, spool_of(os.environ)) / _launcher()).resolve()

    @property
    def log(self) -> Path:
        """What the run writes; of a trace behind a URL it is in the spool until the run has ended.

        It joins what others left in the folder, then.
        """
        folder = self.folder if isinstance(self.folder, Path) else self.spool
        assert folder is not None
        return folder / self._log_name

    @property
    def kept_log(self) -> PathOrUrl:
        """Where the log is after the run."""
        return self.folder / self._log_name

    @property
    def _log_name(self) -> str:
        joins = self.shared or self.settings.resume or isinstance(self.folder, Url)
        return f"output-{_launcher()}.log" if joins else "output.log"


def _launcher() -> str:
    return f"{socket.gethostname()}-{os.getpid()}"


class Executor(Protocol):
    """Runs to the end; anything but a run that recorded something raises CommandFailed."""

    def __call__(self, run: TracedRun) -> None: ...


def require_recorded(run: TracedRun, more: str = "") -> None:
    if rank_names(files_of(run.folder)):
        return
    reasons = read_refusals(run.folder)
    if reasons:
        raise CommandFailed(
            f"the {run.name} run ended well but could not be traced: {'; '.join(reasons)}{more}"
        )
    raise CommandFailed(f"the {run.name} run ended well but {HOW_TO_ATTACH}{more}")
