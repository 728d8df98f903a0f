"""Text on a terminal: wrapped between words, names whole, nothing of a stranger's that acts."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from typing import TextIO

from rich.console import Console
from rich.text import Text

from ttrace.text import inert, inert_line

_PIPED_WIDTH = 150  # chosen: piped output is read by programs and in logs, which do not wrap


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
