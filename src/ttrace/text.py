r"""Text from outside, as it is shown: a character that acts or is not seen is written, never sent.

    inert("wq\x1b[2J\n")        wq\x1b[2J\n         as Python writes it between quotes
    inert("a\u202eb \udc80")    a\u202eb \udc80
    inert("##[error]a")         #\x23[error]a       which the logs of CI systems would obey
    inert_line("::error::a")    \::error::a         so does GitHub, at the beginning of a line

Names of modules, messages of errors and paths of files are chosen by whoever made a model or a
trace. Every form of report shows them as this function has them, and adds what its own markup
needs. What is inert stays as it is: it may be made inert twice.
"""

import re
from collections.abc import Sequence

_MOST_RANKS = 16  # chosen: more are no place to look at
# Printable as Python sees it, and yet nothing is seen: fillers, joiners, selectors of variants.
_UNSEEN = (
    "\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180d\u180f\u2800\u3164\ufe00-\ufe0f\uffa0"
    "\U000e0100-\U000e01ef"
)
# Commands that GitHub, Azure and TeamCity find anywhere in a line: ##[error], ##vso[...].
_ACTING = re.compile(rf"[{_UNSEEN}]|(?<=#)#(?=\w*\[)")
_COMMAND = re.compile(r"^(\s*)::")


def inert(text: str) -> str:
    """One line that does nothing but be read: no controls, no newlines, nothing unseen."""
    if text.isascii() and text.isprintable() and "##" not in text:  # nearly all, and at once
        return text
    if not text.isprintable():
        text = "".join(c if c.isprintable() else _written(c) for c in text)
    return _ACTING.sub(lambda match: _written(match[0]), text)


def inert_line(text: str) -> str:
    """The same for a text that begins a line."""
    return _COMMAND.sub(r"\1\\::", inert(text))


def _written(char: str) -> str:
    if char == "#":
        return r"\x23"
    return char.encode("unicode_escape").decode("ascii")


def list_first(things: Sequence[object], most: int) -> str:
    """Return the first few with commas between, and dots where there are more: 1, 2, 3 ..."""
    return ", ".join(map(str, things[:most])) + " ..." * (len(things) > most)


def list_ranks(ranks: Sequence[int]) -> str:
    """Return ranks by number: rank 1; ranks 1, 2."""
    return f"rank{'s' * (len(ranks) > 1)} {list_first(ranks, _MOST_RANKS)}"
