"""Commands that advise before anything is compared: doctor, skill."""

from __future__ import annotations

import shutil
import time
from importlib import resources
from pathlib import Path
from tempfile import mkdtemp
from typing import Annotated

import typer

from ttrace.cli.options import Json, Timeout
from ttrace.cli.screen import OUT_FOLDER, say, waiting, write_json

_UNDECIDED = 2


def doctor(
    command: Annotated[list[str], typer.Argument(help="The command, after --.")],
    scale: Annotated[
        str | None,
        typer.Option(
            metavar="ranks=N,layers=N,steps=N", help="Say what a diff of such a run would cost."
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="Where traces will go: is there room?")] = OUT_FOLDER,
    timeout: Timeout = 1800.0,
    json_file: Json = None,
) -> None:
    """Trace one step of a command, and say what of it TTrace recognises and sees."""
    from ttrace.analysis.checkup import examine
    from ttrace.capture.settings import Settings
    from ttrace.core.checkup import parse_stated_run, predict_run
    from ttrace.core.door import to_dict
    from ttrace.lab.launch import run_command
    from ttrace.lab.run import TracedRun
    from ttrace.report.checkup import diff_costs, lines, verdict

    stated = None if scale is None else parse_stated_run(scale)
    folder = Path(mkdtemp(prefix="ttrace-doctor-"))
    settings = Settings(folder=folder / "trace")
    run = TracedRun(name="traced", work=command, settings=settings, timeout_seconds=timeout)
    start = time.monotonic()
    with waiting("running one step"):
        run_command(run, command)  # after a failure its output stays: it says why
    spent = time.monotonic() - start
    found = examine(run.folder, free_bytes=_free_bytes(out), command_seconds=spent)
    shutil.rmtree(folder)
    data = {**to_dict(found), "ready": found.is_whole}
    for about, text in lines(found):
        say(f"  {about:<11} {text}", stderr=json_file == "-")
    if stated is not None:
        for text in diff_costs(found, stated):
            say(f"  {'scaled':<11} {text}", stderr=json_file == "-")
        data["scaled"] = to_dict(predict_run(found, stated))
    say(verdict(found), stderr=json_file == "-")
    write_json(json_file, data)
    raise typer.Exit(0 if found.is_whole else _UNDECIDED)


def _free_bytes(folder: Path) -> int:
    """On the disk of a folder that may not be there yet."""
    there = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
    return shutil.disk_usage(there).free


def skill() -> None:
    """How to use TTrace, for an agent: attach, run, read result.json and act on it."""
    text = resources.files("ttrace.cli").joinpath("SKILL.md").read_text(encoding="utf-8")
    say(*text.rstrip("\n").split("\n"))
