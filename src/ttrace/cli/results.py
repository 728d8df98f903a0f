"""Commands that make a result, or something of one: check, report, compare-reports, accept."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from ttrace.cli.options import (
    Accept,
    EngineName,
    Html,
    Json,
    PartsFolder,
    SampleRanks,
    Workers,
    WorkerShare,
)
from ttrace.cli.screen import comparing, finish, open_console, say, write_json
from ttrace.core.finding import Note, Topic
from ttrace.core.results import Strength
from ttrace.errors import UsageError
from ttrace.report.forms import FORMS, TERMINAL, parse_form
from ttrace.report.json_file import read_result
from ttrace.report.numbers import filled, times


def check(
    reference: Annotated[str, typer.Argument(help="Trace of the trusted run, or its URL.")],
    candidate: Annotated[str, typer.Argument(help="Trace of the run to test, or its URL.")],
    perturbed: Annotated[
        list[str] | None, typer.Option(help="Trace of the reference with noise; may be repeated.")
    ] = None,
    repeated: Annotated[
        str | None, typer.Option(help="The reference recorded once more, without noise.")
    ] = None,
    isolated: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="Plans by which the candidate ran; judge it as isolated."
        ),
    ] = None,
    workers: Workers = None,
    engine: EngineName = None,
    worker: WorkerShare = None,
    parts: PartsFolder = None,
    sample_ranks: SampleRanks = False,  # noqa: FBT002
    accept: Accept = None,
    html: Html = None,
    json_file: Json = None,
) -> None:
    """Compare two traces."""
    from ttrace.analysis.accept import acceptances
    from ttrace.analysis.check import check as check_plain
    from ttrace.analysis.check import check_isolated
    from ttrace.analysis.engine import find_engine

    if isolated is not None and repeated is not None:
        raise UsageError("--repeated says nothing of an isolated run: leave it out")
    traces, noise = (reference, candidate), perturbed or []
    measures, entries = find_engine(engine, workers), acceptances(accept)
    with comparing() as progress:
        how: dict[str, Any] = {"perturbed": noise, "progress": progress, "engine": measures}
        how["sample_ranks"] = sample_ranks
        if worker is not None:
            _require_no_result(html, json_file)
            _measure_part(worker, parts, traces, plans=isolated, repeated=repeated, **how)
        how |= {"accept": entries, "parts": parts}
        if isolated is None:
            result = check_plain(*traces, repeated=repeated, **how)
        else:
            result = check_isolated(*traces, plans=isolated, **how)
    if result.strength is Strength.BORDERLINE:
        note = Note(topic=Topic.BORDERLINE, factor=result.largest_ratio)
        result = replace(result, notes=(*result.notes, note))
    finish(result, None, html, json_file)


def _require_no_result(html: str | None, json_file: str | None) -> None:
    given = [name for name, file in (("--html", html), ("--json", json_file)) if file is not None]
    if given:
        raise UsageError(
            f"a worker measures its share and has no result: give {' and '.join(given)} to the "
            "check that has --parts and no --worker"
        )


def _measure_part(worker: str, parts: Path | None, traces: tuple[str, str], **how: Any) -> NoReturn:
    from ttrace.analysis.measuring import measure_part
    from ttrace.analysis.part_file import StaticWorker

    found = StaticWorker.parse(worker)
    if parts is None:
        raise UsageError(f"--worker {found} needs --parts FOLDER: where its part is written")
    file = measure_part(*traces, worker=found, parts=parts, **how)
    say(f"worker {found} measured its share into {file}")
    raise typer.Exit(0)


def report(
    result: Annotated[str, typer.Argument(help="A result.json.")],
    form: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=PATH",
            help="Write a form of an installed package, or just NAME where it prints; repeatable.",
        ),
    ] = None,
    **chosen: str | bool | None,
) -> None:
    """Make any form of report from a result; without options, print it."""
    options = {name: target for name, target in chosen.items() if target}
    wanted = [(FORMS[n], "" if target is True else str(target)) for n, target in options.items()]
    wanted += map(parse_form, form or ())
    found = read_result(result)
    piped = any(target == "-" for _, target in wanted)
    for each, target in wanted or [(TERMINAL, "")]:
        said = each.write(found, target, sys.stdout)
        if said:
            say(said, stderr=piped)
    raise typer.Exit(found.exit_code)


def compare_reports(
    before: Annotated[str, typer.Argument(help="The result.json before a fix.")],
    after: Annotated[str, typer.Argument(help="The result.json after it.")],
    json_file: Json = None,
) -> None:
    """What a fix changed: root causes and tensors that are gone, remain or are new."""
    from ttrace.analysis.fix import tried
    from ttrace.core.plain import to_dict
    from ttrace.report.fixes import fix_headline
    from ttrace.report.terminal_fix import print_fix

    old, new = read_result(before), read_result(after)
    fix = tried(old, new)
    print_fix(fix, str(old), str(new), open_console(stderr=json_file == "-"))
    write_json(json_file, {"words": fix_headline(fix), "exit_code": new.exit_code, **to_dict(fix)})
    raise typer.Exit(new.exit_code)


def accept(
    result: Annotated[str, typer.Argument(help="A result.json.")],
    tensor: Annotated[str, typer.Argument(help="Id of a tensor, or a pattern of ids.")],
    reason: Annotated[str, typer.Option(help="Why it may differ.")],
    file: Annotated[Path, typer.Option(help="The TOML list to add it to.")] = Path("accept.toml"),
    bound: Annotated[
        float | None, typer.Option(help="How many times its tolerance the error may be.")
    ] = None,
) -> None:
    """Add a failure of a result to the list of what may differ."""
    from ttrace.analysis.accept import append_entry, uses
    from ttrace.core.acceptance import Acceptance

    found = read_result(result)
    entry = Acceptance(id=tensor, reason=reason, bound=bound)
    isolated = found.isolation.failures if found.isolation else ()
    failures = list({failure.id: failure for failure in (*isolated, *found.failures)}.values())
    (used,) = uses(failures, [entry])
    if not used.count:
        shown = ", ".join(str(failure.id) for failure in failures[:3]) or "none"
        beyond = f" within {times(bound or 0.0)} its tolerance" if used.beyond else ""
        raise UsageError(f"no failure of {result}{beyond} is called {tensor!r}; there are {shown}")
    append_entry(file, entry)
    accepted = "{count:failure} of {result} {count:|is/are} accepted by it"
    say(f"{tensor} added to {file}; {filled(accepted, count=used.count, result=result)}")


def _with_an_option_for_every_form(command: Callable[..., None]) -> inspect.Signature:
    """The signature that typer reads: `**chosen` is one option for each form but the terminal."""
    result, form, _ = inspect.signature(command, eval_str=True).parameters.values()
    options = [
        inspect.Parameter(
            each.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=None if each.target else False,
            annotation=Annotated[
                str | None if each.target else bool,
                typer.Option(f"--{each.name}", metavar=each.target or None, help=each.help),
            ],
        )
        for each in FORMS.values()
        if each is not TERMINAL
    ]
    return inspect.Signature([result, *options, form.replace(kind=form.KEYWORD_ONLY)])


report.__signature__ = _with_an_option_for_every_form(report)  # type: ignore[attr-defined]
