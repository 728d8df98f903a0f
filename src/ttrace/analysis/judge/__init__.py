"""Stage 5 of 8: judge. Rules say what they see in a case, and one place makes verdicts of it.

Enters: a case, which is two runs and what was measured of them. Leaves: a verdict for every tensor.
A rule is a file of `rules`: it may ask for more to be measured, accuses tensors, and excuses what
stands against others. `reduce` weighs what they say. It must not know who is to blame.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ttrace.analysis.judge.case_file import CaseFile
from ttrace.analysis.judge.exhibits import exhibits_of
from ttrace.analysis.judge.reduce import excuse, weigh
from ttrace.analysis.judge.rules import Rule, find_rules
from ttrace.analysis.judge.rulings import FAILURES, Accusation, Excuse, Standing, Weight
from ttrace.analysis.work import RunJobs
from ttrace.core.finding import Note
from ttrace.core.results import TensorResult, Verdict

__all__ = [
    "FAILURES",
    "Accusation",
    "CaseFile",
    "Excuse",
    "Rule",
    "Verdicts",
    "Weight",
    "excuse",
    "exhibits_of",
    "find_rules",
    "judge",
]


class Verdicts(NamedTuple):
    """Verdicts, what stood against tensors before anything was excused, and notes of excuses."""

    tensors: tuple[TensorResult, ...]
    standing: Standing
    notes: tuple[Note, ...]

    @property
    def open_to_acceptance(self) -> list[TensorResult]:
        """What stood against tensors that fail, or would if nobody had accepted them."""
        found = (t for t in self.tensors if t.verdict.is_failure or t.verdict is Verdict.ACCEPTED)
        return [self.standing[tensor.id] for tensor in found]


def judge(case: CaseFile, run: RunJobs, rules: Sequence[Rule] | None = None) -> Verdicts:
    """Every verdict. All that rules want measured is measured at once."""
    rules = find_rules() if rules is None else rules
    wanted = [rule.jobs(case) for rule in rules]
    jobs = [job for each in wanted for job in each]
    measured = iter(run(jobs, "what rules ask for") if jobs else ())
    found = [[next(measured) for _ in each] for each in wanted]
    standing = weigh(
        case.exhibits,
        (
            accusation
            for rule, results in zip(rules, found, strict=True)
            for accusation in rule.accuse(case, results)
        ),
    )
    excuses = [each for rule in rules for each in rule.excuse(case, standing)]
    tensors, notes = excuse(standing.values(), excuses)
    return Verdicts(tensors, standing, notes)
