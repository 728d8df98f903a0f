"""The command that watches a run without a reference: watch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ttrace.cli.options import Json
from ttrace.cli.screen import say, stamped_folder, waiting, write_json
from ttrace.core.drift import Drift, SharedKind, in_words
from ttrace.errors import CommandFailed
from ttrace.trace.store import local_path


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
    from ttrace.capture.settings import WatchSettings
    from ttrace.core.plain import to_dict
    from ttrace.lab.launch import prepare_folder
    from ttrace.lab.watch import watch_command
    from ttrace.report.watched import watched_lines

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
