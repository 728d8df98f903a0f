"""Commands that make a result, or another form of one: check, report."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from ttrace.cli.options import Html, Json
from ttrace.cli.screen import comparing, finish, open_console, say
from ttrace.core.results import CheckResult


def check(
    reference: Annotated[Path, typer.Argument(help="Trace of the trusted run.")],
    candidate: Annotated[Path, typer.Argument(help="Trace of the run to test.")],
    perturbed: Annotated[
        list[Path] | None, typer.Option(help="Trace of the reference with noise; may be repeated.")
    ] = None,
    repeated: Annotated[
        Path | None, typer.Option(help="The reference recorded once more, without noise.")
    ] = None,
    html: Html = None,
    json_file: Json = None,
) -> None:
    """Compare two traces."""
    from ttrace.analysis.check import check as run_check

    with comparing() as progress:
        result = run_check(
            reference,
            candidate,
            perturbed=perturbed or [],
            repeated=repeated,
            progress=progress,
        )
    finish(result, None, html, json_file)


def report(
    result: Annotated[Path, typer.Argument(help="A result.json.")],
    html: Html = None,
    junit: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write JUnit XML, for CI.")
    ] = None,
    markdown: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write Markdown, for an issue.")
    ] = None,
    github: Annotated[  # noqa: FBT002
        bool,
        typer.Option(
            "--github", help="Print annotations; add the Markdown to $GITHUB_STEP_SUMMARY."
        ),
    ] = False,
    tensorboard: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write TensorBoard scalars.")
    ] = None,
) -> None:
    """Make any form of report from a result; without options, print it."""
    from ttrace.report.json_file import read_result
    from ttrace.report.terminal import print_check

    found = read_result(result)
    files = {
        path: text
        for path, text in ((html, _html), (junit, _junit), (markdown, _markdown))
        if path is not None
    }
    for path, text in files.items():
        path.write_text(text(found), encoding="utf-8")
        say(f"{path}")
    if github:
        _annotate(found)
    if tensorboard is not None:
        from ttrace.report.trackers import write_scalars

        say(f"{write_scalars(found, tensorboard)} scalars in {tensorboard}")
    if not files and not github and tensorboard is None:
        print_check(found, open_console())
    raise typer.Exit(found.exit_code)


def _html(result: CheckResult) -> str:
    from ttrace.report.html import render

    return render(result)


def _junit(result: CheckResult) -> str:
    from ttrace.report.junit import render

    return render(result)


def _markdown(result: CheckResult) -> str:
    from ttrace.report.markdown import render

    return render(result)


def _annotate(result: CheckResult) -> None:
    from ttrace.report.github import summary_file, workflow_commands

    for line in workflow_commands(result):
        sys.stdout.write(f"{line}\n")
    target = summary_file()
    if target is not None:
        with target.open("a", encoding="utf-8") as file:
            file.write(_markdown(result))
