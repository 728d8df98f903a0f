"""Commands that make a result, or something of one: check, report, compare-reports, accept.

A fix, as `compare-reports` tells it:

    1 root cause is gone, 1 root cause is new; 132 tensors that failed pass
      before: NOT EQUIVALENT: layers.0.attention.wo, forward
      after: NOT EQUIVALENT: layers.1.feed_forward, backward

    gone:
      layers.0.attention.wo, forward
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from ttrace.cli import options
from ttrace.cli.screen import comparing, finish, open_console, say, write_json
from ttrace.core.door import to_dict
from ttrace.core.finding import Note, Topic
from ttrace.core.results import Acceptance, Fix, Strength, compare_results
from ttrace.errors import UsageError
from ttrace.report.forms import FORMS, TERMINAL, parse_form
from ttrace.report.json_file import read_result
from ttrace.report.numbers import filled, times
from ttrace.report.terminal import put
from ttrace.report.wording import blamed, phase, with_commas

_SHOWN = 5  # chosen: the first show what the others are

NOT_COMPARABLE = (
    "NOT COMPARABLE: no tensor is in both reports, which are of other models or of other steps"
)
NO_FAILURE = "no failure before, none now"
# The fields of a Fix, in the order in which they are told.
PLACES = {
    "gone": "{count:root cause is/root causes are} gone",
    "remaining": "{count:root cause remains/root causes remain}",
    "new": "{count:root cause is/root causes are} new",
}
COUNTS = {
    "passing": "{count:tensor that failed passes/tensors that failed pass}",
    "failing": "{count:tensor still fails/tensors still fail}",
    "newly_failing": "{count:tensor newly fails/tensors newly fail}",
    "accepted": "{count:tensor that failed is/tensors that failed are} accepted now",
    "undecided": "{count:tensor that failed is/tensors that failed are} undecided now",
    "absent": "{count:tensor that failed is/tensors that failed are} not in the report after the "
    "fix",
}


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
    workers: options.Workers = None,
    engine: options.EngineName = None,
    sample_ranks: options.SampleRanks = False,  # noqa: FBT002
    accept: options.Accept = None,
    html: options.Html = None,
    json_file: options.Json = None,
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
        how: dict[str, Any] = {
            "perturbed": noise,
            "progress": progress,
            "engine": measures,
            "sample_ranks": sample_ranks,
            "accept": entries,
        }
        if isolated is None:
            result = check_plain(*traces, repeated=repeated, **how)
        else:
            result = check_isolated(*traces, plans=isolated, **how)
    if result.strength is Strength.BORDERLINE:
        note = Note(topic=Topic.BORDERLINE, factor=result.largest_ratio)
        result = replace(result, notes=(*result.notes, note))
    finish(result, None, html, json_file)


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
    asked = {name: target for name, target in chosen.items() if target}
    wanted = [(FORMS[n], "" if target is True else str(target)) for n, target in asked.items()]
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
    json_file: options.Json = None,
) -> None:
    """What a fix changed: root causes that are gone, remain or are new, and how much fails."""

    old, new = read_result(before), read_result(after)
    fix = compare_results(old, new)
    console = open_console(stderr=json_file == "-")
    for text in fix_lines(fix, str(old), str(new)):
        put(console, text)
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
    for_forms = [
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
    return inspect.Signature([result, *for_forms, form.replace(kind=form.KEYWORD_ONLY)])


report.__signature__ = _with_an_option_for_every_form(report)  # type: ignore[attr-defined]


def fix_headline(fix: Fix) -> str:
    """Say in one line what changed."""
    if not fix.shared:
        return NOT_COMPARABLE
    counts = {name: len(getattr(fix, name)) for name in PLACES}
    places = [filled(PLACES[name], count=count) for name, count in counts.items() if count]
    tensors = [
        filled(text, count=count) for name, text in COUNTS.items() if (count := getattr(fix, name))
    ]
    return "; ".join(", ".join(said) for said in (places, tensors) if said) or NO_FAILURE


def fix_lines(fix: Fix, before: str, after: str) -> Iterator[str]:
    """Say what changed, line by line; `before` and `after` are the headlines of the results."""
    yield fix_headline(fix)
    yield f"  before: {before}"
    yield f"  after: {after}"
    if not fix.shared:
        return
    for name in PLACES:
        blames = getattr(fix, name)
        if blames:
            yield from ("", f"{name}:")
        for blame in blames[:_SHOWN]:
            yield f"  {with_commas(blamed(blame), phase(blame))}"
        if len(blames) > _SHOWN:
            yield f"  and {len(blames) - _SHOWN} more"
