"""The page docs/reference/bugs.md: what TTrace said of every bug."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ttrace.report.card import cards
from ttrace.report.wording import place
from zoo.bug import Bug
from zoo.trials import Trial

_HEAD = """# Bugs that TTrace was tried on

Written by `make bench-bugs`. Each bug was a real one in a public framework, or stands for a family
of them, re-created on native PyTorch in a few lines (`zoo/native`, `ttrace demo --list-bugs`).
The reference is the same code on one process. Every bug has a correct twin, which must pass in the
plain comparison and in the isolated one; bugs of one layout share theirs, and their reference.

Named: what the isolated run says. Looks like: the kind of mistake that the report shows. Plain:
whether the comparison without isolation finds that something is wrong. Error: the largest distance
from the reference in units of its tolerance among the tensors that were blamed; `inf` where nothing
may differ. Seconds: both runs of the candidate and two comparisons on two shared cores; the first
bug of a layout also makes the reference.
"""

_SHOWN = 3  # places of a row; more than two were never planted


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One bug and its twin."""

    bug: Bug
    buggy: Trial
    twin: Trial

    @property
    def is_named(self) -> bool:
        """The bugs named and nothing else."""
        return self.bug.is_named_by(self.buggy.named)

    @property
    def is_exact(self) -> bool:
        """The same, and hidden from the norm where that is claimed."""
        return self.is_named and self.buggy.is_seen_by_norm != self.bug.is_hidden

    @property
    def is_right(self) -> bool:
        return self.is_exact and self.twin.is_silent


def page(sections: Mapping[str, Sequence[Row]]) -> str:
    """The whole page: a table for each section, then what they come to."""
    parts = [_HEAD]
    for title, rows in sections.items():
        parts.append(f"## {title}\n\n{bugs_table(rows)}\n")
    rows = [row for section in sections.values() for row in section]
    return "\n".join([*parts, _summary(rows)])


def bugs_table(rows: Sequence[Row]) -> str:
    head = (
        "| bug | upstream | layout | named | looks like | plain | error | twin | seconds |\n"
        + "|---" * 9
        + "|"
    )
    return "\n".join([head, *(_line(row) for row in rows)])


def _line(row: Row) -> str:
    places = [place(culprit) for culprit in row.buggy.culprits] or ["nothing"]
    more = [f"{len(places) - _SHOWN} more"] if len(places) > _SHOWN else []
    named = "; ".join(places[:_SHOWN] + more)
    plain = ("passes", "found", "undecided")[row.buggy.plain.exit_code]
    if plain == "found" and not row.buggy.is_seen_by_norm:
        plain = "found, not by a norm"
    cells = (
        f"`{row.bug.name}`: {row.bug.title}",
        row.bug.origin,
        row.bug.layout,
        named if row.is_exact else f"{named} (wrong)",
        _kinds(row.buggy),
        plain,
        _size(row.buggy.largest_ratio),
        "silent" if row.twin.is_silent else "ALARM",
        f"{row.buggy.seconds:.1f}",
    )
    return f"| {' | '.join(cells)} |"


def _kinds(trial: Trial) -> str:
    """The badge of every card, each once."""
    found = (card.badge for card in cards(trial.result))
    said = [f"{b.words}, nearest: {b.nearest}" if b.nearest else b.words for b in found]
    return "; ".join(dict.fromkeys(said)) or "-"


def _size(ratio: float) -> str:
    return "-" if math.isnan(ratio) else f"{ratio:.2g}"


def _summary(rows: Sequence[Row]) -> str:
    bugs = sum(len(row.bug.expected) for row in rows)
    window = sum(len(row.buggy.named) for row in rows) / bugs
    exact = sum(row.is_exact for row in rows)
    silent = sum(row.twin.is_silent for row in rows)
    return (
        f"## Together\n\nExactly named: {exact} of {len(rows)} cases. Silent twins: {silent} of "
        f"{len(rows)}. Blame window (segments named per bug planted): {window:.2f}.\n"
    )
