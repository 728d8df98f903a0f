"""The page docs/reference/programs.md: what TTrace said of every program."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ttrace.report.wording import place
from zoo.programs.program import Program, Wrong
from zoo.programs.trial import unjudged
from zoo.trials import Trial

_HEAD = """# Programs that TTrace was tried on

Written by `make bench-programs`. Each is a script as people write them (`zoo/programs/scripts`),
run as `torchrun` would. A correct program must pass in the plain comparison and in the isolated
one, and all of its parameters, gradients and updates must have been judged. A wrong program is one
of these with a single realistic edit; the isolated run must name the place, and nothing else.

Ratio: the largest distance from the reference in units of its tolerance, of all tensors but those
that differ without an effect. Seconds: all runs and
comparisons of a row on two shared cores; the first row of a script also makes its reference.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class CorrectRow:
    """A correct program; no trial where TTrace could give no answer."""

    program: Program
    trial: Trial | None
    error: str = ""

    @property
    def open(self) -> tuple[str, ...]:
        """What was not judged, where no reason is known."""
        return () if self.trial is None or self.program.unjudged else unjudged(self.trial.plain)

    @property
    def is_right(self) -> bool:
        return self.trial is not None and self.trial.is_silent and not self.open

    @property
    def answer(self) -> str:
        if self.trial is None:
            return f"NO ANSWER: {self.error}"
        if not self.trial.is_silent:
            return f"ALARM: {places(self.trial)}"
        if self.open:
            return f"NOT JUDGED: {', '.join(self.open[:3])} ({len(self.open)} in all)"
        return "silent"


@dataclass(frozen=True, slots=True, kw_only=True)
class WrongRow:
    """A wrong program, and whether what it says is exactly that."""

    wrong: Wrong
    trial: Trial | None
    error: str = ""

    @property
    def is_right(self) -> bool:
        return self.trial is not None and self.wrong.is_named_by(self.trial.named)

    @property
    def answer(self) -> str:
        if self.trial is None:
            return f"NO ANSWER: {self.error}"
        return places(self.trial) + ("" if self.is_right else " (wrong)")


def places(trial: Trial) -> str:
    """What is named; where nothing is, what was not silent."""
    return "; ".join(map(place, trial.told.culprits)) or ", ".join(
        result.outcome.value for result in trial.results
    )


def page(correct: Sequence[CorrectRow], wrong: Sequence[WrongRow]) -> str:
    """Two tables, then what they come to."""
    silent = sum(row.is_right for row in correct)
    named = sum(row.is_right for row in wrong)
    together = (
        f"\n## Together\n\nCorrect programs that passed, everything judged: {silent} of "
        f"{len(correct)}. Wrong ones named exactly: {named} of {len(wrong)}.\n"
    )
    return "\n".join(
        [
            _HEAD,
            "## Correct\n",
            "| program | style | ranks | TTrace | ratio | seconds |\n" + "|---" * 6 + "|",
            *map(_correct_line, correct),
            "\n## Wrong\n",
            "| program | edit | named | seconds |\n" + "|---" * 4 + "|",
            *map(wrong_line, wrong),
            together,
        ]
    )


def _correct_line(row: CorrectRow) -> str:
    program, trial = row.program, row.trial
    reason = f" ({program.unjudged})" if program.unjudged else ""
    ratio = trial.largest_right_ratio if trial else float("nan")
    cells = (
        *(f"`{program.name}`", program.style, str(program.candidate.ranks)),
        *(row.answer + reason, f"{ratio:.2g}", seconds(trial)),
    )
    return f"| {' | '.join(cells)} |"


def wrong_line(row: WrongRow) -> str:
    cells = (f"`{row.wrong.name}`", row.wrong.title, row.answer, seconds(row.trial))
    return f"| {' | '.join(cells)} |"


def seconds(trial: Trial | None) -> str:
    return f"{trial.seconds:.1f}" if trial else "-"
