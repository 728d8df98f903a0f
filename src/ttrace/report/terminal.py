"""The report in a terminal: verdict, culprits, first wrong tensors, what was not covered.

NOT EQUIVALENT: layers.1.feed_forward, backward
  the gradient it passes back to layers.1.ffn_norm is the first wrong: 120,000x its tolerance
"""

from __future__ import annotations

import math
import textwrap
from typing import Any, TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ttrace.core.logical import LogicalTensor
from ttrace.core.results import CheckResult, TensorResult, Verdict
from ttrace.core.statistics import Statistics
from ttrace.report import overall, scope, view, wording
from ttrace.report.numbers import counted, ratio_cell
from ttrace.report.wording import line
from ttrace.report.words import Line

_CULPRITS = 8  # chosen: the first ones are where to look
_ROWS = 10  # chosen: the frontier matters, the rest follows from it
_PIPED_WIDTH = 150  # chosen: piped output is read by programs and in logs, which do not wrap
_WIDE_ENOUGH = 110  # measured: the columns of a Llama's tensors side by side, with a short note
_VERDICT = 31  # counted: the longest verdict and the ratio, with the gaps around them
_NOTE = 10  # chosen: a note is folded, but not to single letters
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


def print_check(result: CheckResult, console: Console) -> None:
    """Print a whole result."""
    colour = ["bold green", "bold red", "bold yellow"][result.exit_code]
    _say(console, overall.headline(result), style=colour)
    causes = view.grouped(result)
    for cause in causes[:_CULPRITS]:
        place = f"{cause.place}: " if len(result.culprits) > 1 else ""
        _say(console, f"  {place}{cause.reason}")
    if len(causes) > _CULPRITS:
        _say(console, f"  {line(Line.MORE_PLACES, count=len(causes) - _CULPRITS)}")
    if spread := overall.follow_on(result):
        _say(console, f"  {spread}")
    shown = result.failures or result.undecided
    if shown:
        _say(console, "")
        title = Line.FIRST_WRONG if result.failures else Line.FIRST_UNDECIDED
        _say(console, line(title, count=len(shown), total=len(result.tensors)))
        console.print(_table(shown[:_ROWS], console))
    _say(console, "")
    _say(console, overall.counts(result))
    for said in filter(None, (overall.nearness(result), scope.judged(result))):
        _say(console, said)
    for said in _coverage(result):
        _say(console, said)


def print_trace(facts: dict[str, Any], console: Console) -> None:
    """What is in one trace."""
    seed = facts["noise_seed"]
    _say(
        console,
        f"{facts['path']}: {counted(facts['tensors'], 'tensor')} of "
        f"{counted(facts['modules'], 'module')}",
        "bold",
    )
    rows = {
        "size": f"{facts['size_bytes'] / 1e6:.1f} MB",
        "ranks": f"{facts['world_size'] - len(facts['missing_ranks'])} of {facts['world_size']}",
        "mesh": ", ".join(f"{axis} {size}" for axis, size in facts["axes"].items()) or "none",
        "steps": ", ".join(f"step{number}" for number in facts["steps"]) or "none",
        "adapter": f"{facts['adapter']} on {facts['device']}",
        "versions": ", ".join(f"{name} {version}" for name, version in facts["versions"].items()),
        "settings": ", ".join(f"{name} {value}" for name, value in facts["facts"].items()),
        "noise": "none" if seed is None else f"seed {seed}: a perturbed reference",
        "kinds": ", ".join(f"{count} {kind}" for kind, count in facts["kinds"].items()),
        "gradients": f"{facts['hooks_fired']} of {facts['hooks_expected']} hooks fired",
    }
    for key in ("missing_ranks", "unfinished_ranks", "unfired", "never_called", "faults", "notes"):
        if facts[key]:
            rows[key.replace("_", " ")] = _few(tuple(map(str, facts[key])))
    for name, value in rows.items():
        _say(console, f"  {name:<16} {value}", hanging=19)
    _say(console, "")
    for id_ in facts["ids"]:
        _say(console, id_)


def print_tensor(
    name: str, tensor: LogicalTensor, statistics: Statistics | None, console: Console
) -> None:
    """One logical tensor: its statistics and the map of its shards."""
    _say(console, name, style="bold")
    facts = {"shape": str(list(tensor.shape)), "dtype": tensor.dtype}
    if statistics is not None:
        facts |= {
            "norm": f"{statistics.reference_norm:.6g}",
            "nonfinite": str(statistics.nonfinite_reference),
        }
    if tensor.notes:
        facts["layout"] = ", ".join(tensor.notes)
    for key, value in facts.items():
        _say(console, f"  {key:<12} {value}")
    table = Table(box=None, pad_edge=False)
    for column in ("rank", "microbatch", "role", "layout", "local shape"):
        table.add_column(column, overflow="fold")
    rows = [*((p, "shard") for p in tensor.pieces), *((p, "replica") for p in tensor.replicas)]
    for piece, role in rows[:64]:
        role = "recomputed" if piece.recompute else role
        role = f"term of a sum ({len(piece.records)})" if len(piece.records) > 1 else role
        for record in piece.records:
            cells = (record.rank, record.microbatch, role, piece.layout, list(record.shape))
            table.add_row(*(_cell(str(cell)) for cell in cells))
    console.print(table)
    if len(rows) > 64:
        _say(console, f"and {counted(len(rows) - 64, 'more piece')}")
    for gap in tensor.gaps:
        _say(console, f"no rank holds {gap}", style="red")


def _table(results: tuple[TensorResult, ...], console: Console) -> Table:
    """On a narrow terminal without the columns that say the same in other units."""
    wide = console.width >= _WIDE_ENOUGH
    table = Table(box=None, pad_edge=False, header_style="bold")
    name = max(len(str(result.id)) for result in results)
    name = min(name, console.width - _VERDICT - _NOTE)
    table.add_column("tensor", overflow="fold", min_width=name, width=None if wide else name)
    table.add_column("verdict")
    table.add_column("error/tolerance", justify="right")
    if wide:
        table.add_column("statistic")
        table.add_column("relative", justify="right")
        table.add_column("eps", justify="right")
    rest = console.width - name - _VERDICT
    table.add_column("note", overflow="fold", width=None if wide else rest)
    for result in results:
        relative = None if result.statistics is None else result.statistics.relative_error
        worst = "" if result.worst is None else result.worst.reading.statistic.value
        units = (_cell(worst), _number(relative), _number(result.error_eps))
        table.add_row(
            _cell(str(result.id)),
            _cell(result.verdict.value, style=_COLOURS.get(result.verdict, "red")),
            ratio_cell(result.ratio),
            *(units if wide else ()),
            _cell(_note(result)),
        )
    return table


def _note(result: TensorResult) -> str:
    """Some ranks are right: the others are where to look. Conflicts name them by themselves."""
    note = wording.finding(result)
    if not result.ranks or result.verdict is Verdict.CONFLICT:
        return note
    return f"{note}{', ' if note else ''}{wording.on_ranks(result.ranks)}"


def _cell(text: str, style: str = "") -> Text:
    """Text as it is: names may look like markup, and layouts do."""
    return Text(_printable(text), style=style)


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    if math.isinf(value):
        return "inf"
    return f"{value:.3g}"


def _coverage(result: CheckResult) -> list[str]:
    lines = [overall.captured(result)]
    lines += [f"{what}: {_few(names)}" for what, names in overall.not_covered(result)]
    lines += [sampled] if (sampled := overall.sampled(result)) else []
    return [*lines, *scope.said_of_accepted(result), *map(overall.note, result.notes)]


def _few(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return ", ".join(names[:4]) + more


def _say(console: Console, text: str, style: str | None = None, hanging: int = 4) -> None:
    """Wrapped between words where a person reads it; in a pipe a line stays a line."""
    shown = _printable(text)
    if console.is_terminal and len(shown) > console.width:
        shown = textwrap.fill(
            shown,
            console.width,
            subsequent_indent=" " * hanging,
            break_long_words=False,
            break_on_hyphens=False,
        )
    console.print(shown, style=style, markup=False, emoji=False, highlight=False, soft_wrap=True)


def _printable(text: str) -> str:
    """Control characters of a stranger's trace must not reach the terminal."""
    return "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in text)
