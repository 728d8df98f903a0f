"""The command that shows what there is to see: demo."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any

import typer

from ttrace.cli.options import Html, Json, Out
from ttrace.cli.runs import shown_experiment
from ttrace.cli.screen import finish, say, write_json
from ttrace.errors import UsageError


def demo(
    bug: Annotated[str | None, typer.Option(help="Plant this bug in the candidate.")] = None,
    list_bugs: Annotated[bool, typer.Option("--list-bugs", help="Show the bugs and exit.")] = False,  # noqa: FBT002
    out: Out = None,
    dtype: Annotated[str, typer.Option(help="float32 or bfloat16.")] = "float32",
    device: Annotated[str, typer.Option(help="cpu or cuda; all ranks share one.")] = "cpu",
    html: Html = None,
    json_file: Json = None,
) -> None:
    """A small Llama: one process against 4 (dp 2 x tp 2), with a bug if you like."""
    from ttrace.demo.bugs import BUGS  # imports torch.distributed: not for every command

    if list_bugs:
        _print_bugs(BUGS, json_file)
        return
    names = [known.name for known in BUGS]
    if bug is not None and bug not in names:
        raise UsageError(
            f"no bug is called {bug!r}; `ttrace demo --list-bugs` shows: {', '.join(names)}"
        )
    if dtype not in ("float32", "bfloat16"):
        raise UsageError(f"--dtype must be float32 or bfloat16, found {dtype!r}")
    if device not in ("cpu", "cuda"):
        raise UsageError(f"--device must be cpu or cuda, found {device!r}")
    script = [sys.executable, "-m", "ttrace.demo.train", "--dtype", dtype, "--device", device]
    reference = [*script, "--microbatches", "1"]
    candidate = [*script, "--dp", "2", "--tp", "2", "--microbatches", "2"]
    if bug is not None:
        candidate += ["--bug", bug]
    with shown_experiment("demo", out, reference=reference, candidate=candidate) as experiment:
        result = replace(experiment, timeout_seconds=300.0).diff()
    finish(result, experiment.folder, html, json_file)


def _print_bugs(bugs: Sequence[Any], json_file: str | None) -> None:
    for bug in bugs:
        say(f"{bug.name:<24} {bug.title} ({bug.origin})", stderr=json_file == "-")
    write_json(
        json_file, [{"name": bug.name, "title": bug.title, "origin": bug.origin} for bug in bugs]
    )
