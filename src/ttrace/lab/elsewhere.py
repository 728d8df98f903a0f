"""Waits for ranks that run elsewhere: by what they leave in the shared folder, not by a process.

    until                                   or
    a rank has begun                        --queue-timeout is over: why nothing may have appeared
    all ranks of the world have ended       --timeout is over: which have not, and how far they are

Enters: a command that runs under its supervisor, and may end long before the ranks do. Leaves: its
exit code, once all ranks have ended. One that is not 0 needs no waiting, nor does one of a command
that waits for its ranks itself. Waiting must not know which scheduler it is; `starts_elsewhere`
alone knows commands of Slurm, Kubernetes and Ray. What it does not recognise, a script that submits
a job say, is for --elsewhere.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from ttrace.capture import settings
from ttrace.capture.settings import PACKED
from ttrace.errors import UsageError
from ttrace.lab.run import Command, TracedRun
from ttrace.lab.supervised import GRACE_SECONDS, PATIENCE_SECONDS, NotStarted, Supervised
from ttrace.report.numbers import filled
from ttrace.text import list_ranks
from ttrace.trace.progress import WorldStanding, last_step, read_refusals, standing, trail
from ttrace.trace.store import local_path

_LOOK_SECONDS = 1.0  # chosen: between two looks into a folder that many may share
_REST = 9  # chosen: times as long as a look took, so that we look a tenth of the time at most
_TELL_SECONDS = 10.0  # chosen: between two lines of a log
_STOP_SECONDS = 60.0  # chosen: a scheduler that is busy answers within that
_MOST_RANKS = 16  # chosen: of which it is said how far they are
_BETWEEN = "();<>|&\n"  # commands of a line of shell
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)
# After NAME= as in a shell, or "NAME": as in JSON.
_EMPTIED = re.compile(rf"{PACKED}(?:=|[\"']\s*:\s*+)[\"']*+(?=[\s,;|&)}}]|$)")


class RanksMissing(Exception):
    """A sentence: ranks that run elsewhere did not come to their end."""


def wait_for_ranks(process: Supervised, run: TracedRun, *, is_detached: bool) -> int | None:
    """The exit code of the command; None when it goes on though all ranks have ended.

    The end of one that `is_detached` says nothing about them.
    """
    try:
        code = _Waiting(process, run, is_detached=is_detached).code()
    except NotStarted:
        raise
    except BaseException:
        _stop(run)
        raise
    if code in (0, None) and not run.to_end:
        if run.elsewhere.stop is not None:
            time.sleep(PATIENCE_SECONDS)
        _stop(run)
    return code


class _Waiting:
    """One run, from its command to the end of its last rank."""

    def __init__(self, process: Supervised, run: TracedRun, *, is_detached: bool) -> None:
        self._process, self._run, self._is_detached = process, run, is_detached
        self._code: int | None = None
        self._ranks = WorldStanding()
        self._told, self._told_at = "", 0.0
        self._since = time.monotonic()  # the start, and from the first sign of a rank on that
        self._folder = local_path(run.folder)
        self._before = trail(self._folder)
        self._has_begun = False

    def code(self) -> int | None:
        pause = 0.0
        while not self._has_ended(pause):
            start = time.monotonic()
            self._look()
            if self._ranks.is_over:
                return self._end_of_command()
            left = self._left()
            took = time.monotonic() - start
            pause = min(max(_LOOK_SECONDS, _REST * took), left)
        return self._code

    def _has_ended(self, pause: float) -> bool:
        """Whether the command has failed, or ended with its ranks; else after a pause."""
        if self._code is None:
            with suppress(subprocess.TimeoutExpired):
                self._code = self._process.wait(pause)
        else:
            time.sleep(pause)
        return self._code is not None and (self._code != 0 or not self._is_detached)

    def _look(self) -> None:
        folder = self._folder
        self._ranks = standing(folder, self._ranks)
        reasons = read_refusals(folder)
        if not self._has_begun and (reasons or trail(folder) != self._before):
            self._has_begun, self._since = True, time.monotonic()
        if reasons and not self._ranks.under_way and not self._ranks.is_over:
            raise RanksMissing(
                f"a process of the {self._run.name} run could not be traced: {'; '.join(reasons)}."
                f"{_goes_on(self._run)}"
            )
        self._tell()

    def _left(self) -> float:
        """Seconds; RanksMissing when none are."""
        run, passed = self._run, time.monotonic() - self._since
        limit = run.timeout_seconds if self._has_begun else run.elsewhere.queue_seconds
        if passed < limit:
            return limit - passed
        raise RanksMissing(_partial(run, self._ranks) if self._has_begun else _nothing(run))

    def _end_of_command(self) -> int | None:
        if self._code is None:
            seconds = self._run.timeout_seconds if self._run.to_end else PATIENCE_SECONDS
            with suppress(subprocess.TimeoutExpired):
                self._code = self._process.wait(seconds)
        return self._code

    def _tell(self) -> None:
        now, text = time.monotonic(), _how_far(self._ranks)
        is_new = text != self._told and (
            self._ranks.is_over or not self._told or now - self._told_at >= _TELL_SECONDS
        )
        if is_new and self._run.tell is not None:
            self._told, self._told_at = text, now
            self._run.tell(text)


def _how_far(ranks: WorldStanding) -> str:
    if ranks.world_size is None:
        return "no rank has begun"
    text = "{ended} of {size:rank has/ranks have} ended"
    absent = len(ranks.absent)
    text += ", {absent} {absent:|has/have} not begun" if absent else ""
    return filled(text, ended=len(ranks.ended), size=ranks.world_size, absent=absent)


def _nothing(run: TracedRun) -> str:
    return (
        f"no rank of the {run.name} run has begun within {run.elsewhere.queue_seconds:g} s "
        f"(--queue-timeout): nothing is in {run.folder.resolve()}. Raise --queue-timeout if its "
        "job still waits to be started. Else look at what the job wrote: its ranks must see this "
        "folder at this path and may write into it, must be given "
        f"${settings.PACKED} or the other variables TTRACE_*, and must call `ttrace.attach`."
        f"{_goes_on(run)}"
    )


def _partial(run: TracedRun, ranks: WorldStanding) -> str:
    parts = [*_missing(run, ranks)]
    return (
        f"the {run.name} run was not over {run.timeout_seconds:g} s after its first rank had begun "
        f"(--timeout): {_how_far(ranks)}: {'; '.join(parts)}. Look at what its job wrote: "
        "a rank that died, or a collective that one rank never entered, looks like this. Raise "
        f"--timeout if it is merely slow.{_goes_on(run)}"
    )


def _missing(run: TracedRun, ranks: WorldStanding) -> Iterator[str]:
    """Which ranks never began, which did not end and how far they are, which ended too early."""
    if ranks.absent:
        yield f"{list_ranks(ranks.absent)} never began"
    by_step: dict[int | None, list[int]] = defaultdict(list)
    for rank in ranks.under_way[:_MOST_RANKS]:
        by_step[last_step(local_path(run.folder), rank)].append(rank)
    for step, found in by_step.items():
        how_far = "no step" if step is None else f"step {step} as the last"
        yield f"{list_ranks(found)} began, recorded {how_far} and did not end"
    if (more := len(ranks.under_way) - _MOST_RANKS) > 0:
        yield filled("{more:rank} more did not end", more=more)
    asked = run.settings.steps
    if early := [rank for rank, steps in sorted(ranks.ended.items()) if steps < asked]:
        fewest = min(ranks.ended[rank] for rank in early)
        yield f"{list_ranks(early)} ended early, after {fewest} of {asked} steps"


def _goes_on(run: TracedRun) -> str:
    if run.elsewhere.stop is None:
        return " What the command has started elsewhere goes on: end it there (--stop COMMAND)."
    return f" The command of --stop was run: {_stop_log(run)}."


def _stop_log(run: TracedRun) -> Path:
    return run.log.with_name(f"{run.log.stem}-stop.log")


def _stop(run: TracedRun) -> None:
    """Run the command of --stop, which reads what the run's command wrote; whatever it says."""
    if run.elsewhere.stop is None:
        return
    reading = ["/bin/sh", "-c", 'exec < "$1" && exec /bin/sh -c "$2"', "sh"]
    words = [*reading, str(run.log), run.elsewhere.stop]
    environment = settings.without_settings(os.environ)
    with _stop_log(run).open("wb", buffering=0) as log:
        process = Supervised(words, environment, log, grace_seconds=GRACE_SECONDS)
        try:
            how = f"ended with exit code {process.wait(_STOP_SECONDS)}"
        except subprocess.TimeoutExpired:
            how = f"did not end within {_STOP_SECONDS:g} s"
        finally:
            process.stop()
        log.write(f"\nttrace: the command of --stop {how}\n".encode())


def starts_elsewhere(command: Command) -> bool:
    """Whether one of its parts submits something and returns at once."""
    parts = _parts(command) if isinstance(command, str) else [list(command)]
    return any(_submits(words) for words in parts)


def require_handed_on(name: str, command: Command) -> None:
    """Refuse a command in which a shell has replaced $TTRACE_SETTINGS before we had set it."""
    text = command if isinstance(command, str) else "\n".join(command)
    if _EMPTIED.search(text):
        raise UsageError(
            f"{PACKED} is empty in the {name} command: the shell in which it was typed has "
            f"replaced ${PACKED}, which `ttrace` sets later; write the command in single quotes, "
            "or escape the dollar sign"
        )


def _parts(command: str) -> Iterator[list[str]]:
    """The words of every command of a line of shell; none where quotes are not closed."""
    lexer = shlex.shlex(command, posix=True, punctuation_chars=_BETWEEN)
    lexer.whitespace_split, lexer.commenters, lexer.whitespace = True, "", " \t\r"
    try:
        tokens = list(lexer)
    except ValueError:
        return
    words: list[str] = []
    for token in [*tokens, ";"]:
        if token and not token.strip(_BETWEEN):
            yield words
            words = []
        else:
            words.append(token)


def _submits(words: Sequence[str]) -> bool:
    first = next((i for i, word in enumerate(words) if not _ASSIGNMENT.fullmatch(word)), None)
    if first is None:
        return False
    program, *rest = words[first:]
    name = Path(program).name
    if name == "sbatch":
        return not {"--wait", "-W"} & {*rest}
    if name == "kubectl":
        tries = any(word.startswith("--dry-run") for word in rest)
        return not tries and bool({"apply", "create"} & {*rest})
    ours = rest[: rest.index("--")] if "--" in rest else rest
    return name == "ray" and rest[:2] == ["job", "submit"] and "--no-wait" in ours
