"""The report in a terminal: the verdict, its card, the first wrong tensors, what was not covered.

NOT EQUIVALENT: layers.1.feed_forward, backward
where     FeedForward, in FeedForward.forward (model.py:88)
what      missing all-reduce over tp
how sure  certain: 120,000x its tolerance
ranks     tp1 (ranks 1, 3)
next      look for an all-reduce that is not called here

Text is wrapped between words, names stay whole, and nothing of a stranger's in it acts.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Iterator
from typing import TextIO

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from ttrace.core.mesh import Mesh
from ttrace.core.record import Excerpt
from ttrace.core.results import CheckResult, Strength, TensorResult, Verdict
from ttrace.report import overall, view, wording
from ttrace.report.card import Bar, Card, cards
from ttrace.report.catalogue.sentences import Line
from ttrace.report.wording import line, mesh_of, on_ranks
from ttrace.text import inert, inert_line

_PIPED_WIDTH = 150  # chosen: piped output is read by programs and in logs, which do not wrap
_ROWS = 5  # chosen: the frontier matters, the rest follows from it
_OTHERS = 5  # chosen: further places
_VALUES = 5  # chosen: a number of the reference and of four ranks
_LABEL = 10  # counted: "how sure" and a gap
_BAR = 24  # chosen: fits beside its numbers in 80 columns
_UNLIMITED = 10_000  # columns; no name is longer
_UTF8, _ASCII = "░▒█", ".-#"  # up to the noise, up to the tolerance, up to the error
_COLOURS = {
    Verdict.PASS: "green",
    Verdict.EXTRA: "dim",
    Verdict.BORDERLINE: "yellow",
    Verdict.HARMLESS: "dim",
    Verdict.UNDECIDED: "yellow",
    Verdict.ACCEPTED: "yellow",
}


def console_on(out: TextIO) -> Console:
    """A console of the terminal's width, where there is a terminal."""
    console = Console(file=out)
    return console if console.is_terminal else Console(file=out, width=_PIPED_WIDTH)


def put(console: Console, text: str, style: str | None = None, *, hanging: int = 4) -> None:
    """One line, wrapped between words where a person reads it; in a pipe a line stays a line."""
    shown = inert(text)
    if console.is_terminal and len(shown) > console.width:
        shown = textwrap.fill(
            shown,
            console.width,
            subsequent_indent=" " * hanging,
            break_long_words=False,
            break_on_hyphens=False,
        )
    _send(console, shown.split("\n"), style)


def put_lines(console: Console, lines: Iterable[str]) -> None:
    """Lines as they are, of whatever length: they may hold a command or a path to be copied."""
    _send(console, lines)


def cell(text: str, style: str = "") -> Text:
    """Text as it is: names may look like markup, and layouts do."""
    return Text(inert(text), style=style)


def _send(console: Console, lines: Iterable[str], style: str | None = None) -> None:
    shown = "\n".join(map(inert_line, lines))
    console.print(shown, style=style, markup=False, emoji=False, highlight=False, soft_wrap=True)


def few(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return ", ".join(names[:4]) + more


def print_check(result: CheckResult, console: Console) -> None:
    """Print a whole result."""
    found = cards(result)
    colour = ["bold green", "bold red", "bold yellow"][result.exit_code]
    if found and found[0].strength is Strength.BORDERLINE:
        colour = "bold yellow"
    put(console, overall.headline(result), colour)
    if found:
        _print_card(found[0], console)
        _print_others(found[1:], console)
    if spread := overall.follow_on(result):
        put(console, "")
        put(console, spread)
    shown = result.failures or result.undecided
    if shown:
        put(console, "")
        title = Line.FIRST_WRONG if result.failures else Line.FIRST_UNDECIDED
        put(console, line(title, count=len(shown), total=len(result.tensors)))
        _print_tensors(shown[:_ROWS], mesh_of(result), console)
    put(console, "")
    put(console, overall.counts(result))
    for said in filter(None, (overall.nearness(result), overall.judged(result))):
        put(console, said)
    for said in _coverage(result):
        put(console, said)


def _print_card(card: Card, console: Console) -> None:
    """Five facts, each beside its label; then the code."""
    for label, lines in _facts(card, console):
        for number, said in enumerate(lines):
            head = label if number == 0 else ""
            put(console, f"{head:<{_LABEL}}{said}", hanging=_LABEL)
    for excerpt in card.code[:1]:
        put(console, "")
        _print_code(excerpt, console)


def _facts(card: Card, console: Console) -> Iterator[tuple[str, list[str]]]:
    cause, kind = card.cause, card.badge
    is_said = bool(card.behind) and not cause.places  # in the headline
    yield "where", [card.behind] if is_said else [cause.place, *filter(None, (card.behind,))]
    yield "what", [kind.words, *filter(None, (card.looks, card.expected))]
    bar = [] if card.bar is None else [_drawn(card.bar, console)]
    yield "how sure", [card.sure, *bar]
    if card.ranks_said:
        yield "ranks", [card.ranks_said]
    commands = [f"{command.purpose}: {command.text}" for command in card.commands[:1]]
    yield "next", [card.hint, *commands]
    yield "why", [card.why]
    if card.values:
        more = len(card.values) - _VALUES
        rest = [line(Line.MORE_VALUES, count=more)] if more > 0 else []
        yield "values", [*card.values[:_VALUES], *rest]


def _drawn(bar: Bar, console: Console) -> str:
    """░░▒▒████████ noise 1.1e-07, allowed 3.3e-07, error 0.71: lengths are logarithmic."""
    signs = _UTF8 if console.encoding.lower().startswith("utf") else _ASCII
    numbers = [bar.noise, bar.allowed, bar.error]
    known = [value for value in numbers if value and math.isfinite(value)]
    low = math.log10(min(known)) - 1
    span = math.log10(max(known)) - low
    drawn, last = "", 0
    for sign, value in zip(signs, numbers, strict=True):
        if not value:
            continue
        log = (math.log10(value) - low) / span if math.isfinite(value) else 1.0
        end = max(last, round(_BAR * log))
        drawn, last = drawn + sign * (end - last), end
    noise = f"noise {bar.noise:.2g}, " if bar.noise else ""
    return f"{drawn} {noise}allowed {bar.allowed:.2g}, error {bar.error:.2g} of the reference"


def _print_code(excerpt: Excerpt, console: Console) -> None:
    width = len(str(excerpt.first + len(excerpt.lines)))
    for number, text in enumerate(excerpt.lines, start=excerpt.first):
        is_it = number == excerpt.line
        mark = ">" if is_it else " "
        style = "bold" if is_it else "dim"
        put(console, f"  {mark} {number:>{width}}  {text}", style, hanging=width + 8)


def _print_others(others: tuple[Card, ...], console: Console) -> None:
    for number, card in enumerate(others[:_OTHERS]):
        head = "" if number else "also"
        said = f"{card.cause.place}: {card.badge.words}, {card.sure}"
        put(console, "") if not number else None
        put(console, f"{head:<{_LABEL}}{said}", hanging=_LABEL)
    if len(others) > _OTHERS:
        more = line(Line.MORE_PLACES, count=len(others) - _OTHERS)
        put(console, f"{'':<{_LABEL}}{more}")


def _print_tensors(results: tuple[TensorResult, ...], mesh: Mesh, console: Console) -> None:
    """Side by side where that fits, and else below each name, which is never broken."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("tensor", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    table.add_column("error/tolerance", justify="right", no_wrap=True)
    table.add_column("note", no_wrap=True)
    for result in results:
        colour = _COLOURS.get(result.verdict, "red")
        table.add_row(
            cell(str(result.id)),
            cell(result.verdict.value, style=colour),
            view.ratio_cell(result),
            cell(_note(result, mesh)),
        )
    unlimited = console.options.update(max_width=_UNLIMITED)
    if Measurement.get(console, unlimited, table).maximum <= console.width:
        console.print(table)
        return
    for result in results:
        put(console, str(result.id))
        ratio = view.ratio_cell(result).strip("-")
        said = wording.with_commas(result.verdict.value, ratio, _note(result, mesh))
        put(console, f"    {said}")


def _note(result: TensorResult, mesh: Mesh) -> str:
    """Some ranks are right: the others are where to look. Conflicts name them by themselves."""
    note = wording.finding(result, mesh)
    if not result.ranks or result.verdict is Verdict.CONFLICT:
        return note
    return wording.with_commas(note, on_ranks(result.ranks, mesh))


def _coverage(result: CheckResult) -> list[str]:
    lines = [overall.captured(result)]
    lines += [f"{what}: {few(names)}" for what, names in overall.not_covered(result)]
    lines += [sampled] if (sampled := overall.sampled(result)) else []
    return [*lines, *overall.said_of_accepted(result), *map(overall.note, result.notes)]
