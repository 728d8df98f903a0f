"""The page docs/reference/wild.md: bugs of released packages, and what TTrace said of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ttrace.lab.experiment import localized
from ttrace.report.overall import headline
from zoo.trials import Trial
from zoo.wild.bug import Answer, WildBug

_HEAD = """# Bugs in the wild

Written by `make bench-wild`. These are bugs of released packages that TTrace found: nothing was
planted. Each is a script as a user writes it with the three lines of TTrace (`zoo/wild/scripts`),
on two processes (gloo, CPU) against one. Its twin is the same script with an edit by which a user
avoids the bug; it must pass in the plain comparison and in the isolated one. The proof is a script
of a few lines without TTrace (`zoo/wild/proofs`), which prints the wrong number and the right one.

Where the version at hand has no such bug any more, or the package is not installed, the row stays
with the version that has it, and says that it was not run.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A bug, what its proof says, and what TTrace said of it and of its twin."""

    bug: WildBug
    proof: Answer | None = None
    wrong: Trial | None = None
    twin: Trial | None = None
    error: str = ""

    @property
    def is_right(self) -> bool:
        """Whether it was named exactly and the twin was silent; what was not run is not wrong."""
        if self.wrong is None or self.twin is None:
            return self.proof in (None, Answer.FIXED)
        return self.bug.is_named_by(self.wrong.named) and self.twin.is_silent

    @property
    def said(self) -> str:
        """The first line of what TTrace prints."""
        if self.wrong is None or self.wrong.isolated is None:
            return self.error
        return headline(localized(self.wrong.plain, self.wrong.isolated))


def page(rows: Sequence[Row]) -> str:
    """One table, then what it comes to."""
    run = [row for row in rows if row.wrong is not None]
    together = (
        f"\nOf {len(rows)} bugs {len(run)} were run; {sum(row.is_right for row in run)} of them "
        "were named exactly, with a silent twin.\n\nTo look for more: "
        "`python -m studies.sweep`, which tries losses, operators, optimizers and "
        "options of FSDP2 against one process.\n"
    )
    head = "| bug | package | what is wrong | TTrace | twin | proof |\n" + "|---" * 6 + "|"
    return "\n".join([_HEAD, head, *map(_line, rows), together])


def _line(row: Row) -> str:
    bug = row.bug
    issue = bug.link.removeprefix("https://github.com/").replace("/issues/", "#")
    link = f"[{issue}]({bug.link})" if bug.link else "no issue known"
    version = (bug.installed if row.wrong is not None else None) or bug.version
    twin = "-" if row.twin is None else "silent" if row.twin.is_silent else "ALARM"
    cells = (
        *(f"`{bug.name}`", f"{bug.package} {version}, {link}", bug.title),
        *(f"`{row.said}`" if row.wrong else row.said, twin, row.proof or "-"),
    )
    return f"| {' | '.join(cells)} |"
