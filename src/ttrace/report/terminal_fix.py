"""A fix in a terminal: the verdict, both headlines, then every kind of change with its first rows.

PARTLY FIXED: 1 root cause is gone, 1 root cause remains; 120 tensors that failed pass
  before: NOT EQUIVALENT: layers.0.attention.wo, forward (and 1 more)
  after: NOT EQUIVALENT: layers.1.feed_forward, backward

1 root cause is gone:
  layers.0.attention.wo, forward: 423,000x its tolerance before
"""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console

from ttrace.core.fix import Fix, FixVerdict
from ttrace.report import fixes
from ttrace.report.console import put

_COLOURS = {
    FixVerdict.FIXED: "bold green",
    FixVerdict.WORSE: "bold red",
    FixVerdict.MIXED: "bold red",
}


def print_fix(fix: Fix, before: str, after: str, console: Console) -> None:
    """Print what changed; `before` and `after` are the headlines of the two results."""
    put(console, fixes.fix_headline(fix), _COLOURS.get(fix.verdict, "bold yellow"))
    for text in _lines(fix, before, after):
        put(console, text)


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
