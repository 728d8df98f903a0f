"""The command that watches a run without a reference: watch.

replicas agree: 1,000 steps, 6 gradients, 6 parameters and 2 buffers on 2 ranks
DRIFT: step 3: parameter 2.weight differs between replicas: rank 1 from ranks 0, 2, 3
NOTHING TO COMPARE: the run has one process
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated

import typer

from ttrace.capture.settings import WatchSettings
from ttrace.cli.options import Json
from ttrace.cli.screen import say, stamped_folder, waiting, write_json
from ttrace.core.door import to_dict
from ttrace.core.drift import Drift, SharedKind, WatchedRun, in_words
from ttrace.errors import CommandFailed
from ttrace.lab.launch import prepare_folder
from ttrace.lab.watch import watch_command
from ttrace.report.numbers import counted
from ttrace.trace.store import local_path

_MOST_LINES = 8  # chosen: more is read in the file
_NOTHING = "NOTHING TO COMPARE: "


def watch(
    command: Annotated[list[str], typer.Argument(help="The command, after --.")],
    every: Annotated[int, typer.Option(min=1, help="Compare after every n-th step.")] = 1,
    skip: Annotated[int, typer.Option(min=0, help="How many steps to let pass first.")] = 0,
    without: Annotated[
        list[SharedKind] | None,
        typer.Option(help="Do not compare gradient, parameter or buffer; may be repeated."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(parser=local_path, metavar="PATH", help="Folder for what is found."),
    ] = None,
    timeout: Annotated[
        float | None, typer.Option(min=0.1, help="Seconds after which the command is stopped.")
    ] = None,
    json_file: Json = None,
) -> None:
    """Run a command to its end, and say when replicas of a parameter begin to differ."""

    def told(drift: Drift) -> None:
        say(f"ttrace: {in_words(drift)}; the command goes on", stderr=True)

    folder = prepare_folder(out or stamped_folder("watch"))
    settings = WatchSettings(
        folder=folder, skip=skip, every=every, without=frozenset(without or ())
    )
    with waiting("watching"):
        end = watch_command(settings, command, told, timeout)
    quiet = json_file == "-"
    if end.found is not None:
        say(*watched_lines(end.found), stderr=quiet)
    for why in end.refusals:
        say(f"  a process could not be watched: {why}", stderr=quiet)
    say(f"watch.json and output.log in {folder}", stderr=quiet)
    code = end.exit_code
    found = {} if end.found is None else to_dict(end.found)
    write_json(json_file, {**found, "failure": end.failure, "exit_code": code})
    if end.failure is not None:
        failed = CommandFailed(end.failure)
        if code != 1:
            raise failed
        say(*str(failed).split("\n"), stderr=True)
    raise typer.Exit(code)


def watched_lines(found: WatchedRun) -> Iterator[str]:
    """The answer first, then what limits it."""
    yield _answer(found)
    for drift in found.drifts[1:_MOST_LINES]:
        yield f"  {in_words(drift)}"
    more = len(found.drifts[_MOST_LINES:]) + found.more_drifts
    if more:
        yield f"  and {counted(more, 'more tensor')}"
    if found.broke_off is not None:
        yield f"  watching broke off after {_steps(found.watched)}: {found.broke_off}"
    elif not found.ended:
        yield "  the run did not come to its end"
    if any(found.unjudged.values()):
        names = f": {', '.join(found.names)}" if found.names else ""
        yield (
            f"  not judged, since ranks differed when they were seen first: "
            f"{_kinds(found.unjudged)}{names}"
        )


def _answer(found: WatchedRun) -> str:
    if found.drifts:
        return f"DRIFT: {in_words(found.drifts[0])}"
    if found.world_size == 1:
        return f"{_NOTHING}the run has one process, or no process group"
    if found.steps == 0:
        return f"{_NOTHING}the run made no step"
    if not found.watched:
        return f"{_NOTHING}none of {_steps(found.steps)} was watched"
    if not any(found.compared.values()):
        return (
            f"{_NOTHING}no two of {found.world_size} ranks hold the same part of anything: "
            "sharded parameters have no replicas"
        )
    agreed = "replicas agree" if found.broke_off is None else "replicas agreed"
    what = f"{_steps(found.watched)}, {_kinds(found.compared)}"
    return f"{agreed}: {what} on {counted(found.world_size, 'rank')}"


def _steps(count: int) -> str:
    return f"{count:,} step{'s' * (count != 1)}"


def _kinds(counts: Mapping[SharedKind, int]) -> str:
    parts = [counted(count, kind.value) for kind, count in counts.items() if count]
    return " and ".join(filter(None, (", ".join(parts[:-1]), parts[-1])))
