"""A fix in a terminal: the verdict, both headlines, then every kind of change with its first rows.

PARTLY FIXED: 1 root cause is gone, 1 root cause remains; 120 tensors that failed pass
  before: NOT EQUIVALENT: layers.0.attention.wo, forward (and 1 more)
  after: NOT EQUIVALENT: layers.1.feed_forward, backward

1 root cause is gone:
  layers.0.attention.wo, forward: 423,000x its tolerance before
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from rich.console import Console

from ttrace.core.fix import Fix, FixVerdict
from ttrace.report import fixes

_COLOURS = {
    FixVerdict.FIXED: "bold green",
    FixVerdict.WORSE: "bold red",
    FixVerdict.MIXED: "bold red",
}


def print_fix(fix: Fix, before: str, after: str, console: Console) -> None:
    """Print what changed; `before` and `after` are the headlines of the two results."""
    _say(console, fixes.fix_headline(fix), _COLOURS.get(fix.verdict, "bold yellow"))
    for text in _lines(fix, before, after):
        _say(console, text)


def _lines(fix: Fix, before: str, after: str) -> Iterator[str]:
    yield f"  before: {before}"
    yield f"  after: {after}"
    if fix.verdict is FixVerdict.NOT_COMPARABLE:
        return
    for section in fixes.sections(fix):
        yield ""
        yield f"{section.title}:"
        yield from (f"  {row}" for row in section.rows)
        if section.more:
            yield f"  and {section.more} more"


def _say(console: Console, text: str, style: str | None = None) -> None:
    """Wrapped between words where a person reads it; names may look like markup or worse."""
    shown = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
    if console.is_terminal and len(shown) > console.width:
        shown = textwrap.fill(
            shown,
            console.width,
            subsequent_indent=" " * 4,
            break_long_words=False,
            break_on_hyphens=False,
        )
    console.print(shown, style=style, markup=False, emoji=False, highlight=False, soft_wrap=True)
