"""The page docs/reference/trainers.md: what TTrace sees of every trainer, and what it said."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.programs.table import CorrectRow, WrongRow, seconds, wrong_line
from ttrace.core.ids import Kind
from zoo.programs.program import Run
from zoo.trainers.judged import not_judged
from zoo.trials import Trial

_HEAD = """# Trainers

Written by `make bench-trainers`. Each row is the example of a trainer (`examples/`) in one
strategy, run on one process as the reference and on the ranks named as the candidate, every run in
a process of its own. It must pass in the plain comparison and in the isolated one, with all
parameters, gradients, states and updates judged; and after three steps losses and parameters must
be bitwise those of the untraced run on every rank ("same").

Lines: of the script that mention TTrace. Then how many tensors were judged, by phase: values of the
forward pass, gradients of activations, gradients of parameters on each rank, reduced gradients
(also clipped ones), norms, optimizer state, updated parameters. Seconds: all runs and comparisons
of a row on two shared cores; the first row of a script also makes its reference.
"""
_PHASES = {
    "forward": {Kind.INPUT, Kind.OUTPUT, Kind.LOSS},
    "backward": {Kind.GRAD_INPUT, Kind.GRAD_OUTPUT},
    "local": {Kind.GRAD, Kind.ACCUMULATED_GRAD},
    "reduced": {Kind.REDUCED_GRAD, Kind.MAIN_GRAD, Kind.CLIPPED_GRAD},
    "norm": {Kind.GRAD_NORM},
    "state": {Kind.OPTIMIZER},
    "update": {Kind.PARAM_AFTER},
}
_OURS = re.compile(r"\b(ttrace|tracer|TTraceCallback)\b")


@dataclass(frozen=True, kw_only=True)
class StrategyRow(CorrectRow):
    """A trainer in one strategy; `is_unchanged`: tracing it changes nothing."""

    is_unchanged: bool

    @property
    def open(self) -> tuple[str, ...]:
        """Also where a reason is known: of parameters that have a gradient, everything."""
        return (
            super().open if self.trial is None else (*super().open, *not_judged(self.trial.plain))
        )

    @property
    def is_right(self) -> bool:
        return super().is_right and self.is_unchanged

    @property
    def answer(self) -> str:
        return super().answer if self.is_unchanged else f"{super().answer}, OTHER NUMBERS"


def lines_added(run: Run) -> int:
    """Of its script: those that somebody who traces it has written."""
    return sum(bool(_OURS.search(line)) for line in run.text().splitlines())


def page(correct: Sequence[StrategyRow], wrong: Sequence[WrongRow]) -> str:
    """Two tables, then what they come to."""
    right = sum(row.is_right for row in correct)
    named = sum(row.is_right for row in wrong)
    together = (
        f"Correct strategies that passed, everything judged, nothing changed: {right} of "
        f"{len(correct)}. Wrong ones named exactly: {named} of {len(wrong)}.\n"
    )
    columns = ("trainer/strategy", "ranks", "lines", *_PHASES, "TTrace", "ratio", "same", "seconds")
    return "\n".join(
        [
            _HEAD,
            "## Correct\n",
            f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|",
            *map(_line, correct),
            "\n## Wrong\n",
            "| trainer/strategy/mistake | edit | named | seconds |\n" + "|---" * 4 + "|",
            *map(wrong_line, wrong),
            "\n## Together\n",
            together,
        ]
    )


def _line(row: StrategyRow) -> str:
    program, trial = row.program, row.trial
    reason = f" ({program.unjudged})" if program.unjudged else ""
    ratio = trial.largest_right_ratio if trial else float("nan")
    cells = (
        *(f"`{program.name}`", str(program.candidate.ranks), str(lines_added(program.candidate))),
        *map(str, _judged(trial)),
        *(row.answer + reason, f"{ratio:.2g}", "yes" if row.is_unchanged else "NO"),
        seconds(trial),
    )
    return f"| {' | '.join(cells)} |"


def _judged(trial: Trial | None) -> list[int]:
    kinds = Counter(t.id.kind for t in trial.plain.tensors) if trial else Counter[Kind]()
    return [sum(kinds[kind] for kind in phase) for phase in _PHASES.values()]
