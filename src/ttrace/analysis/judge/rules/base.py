"""What a rule is. One more is one more file with a class of this form."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ttrace.analysis.engine import Job
from ttrace.analysis.judge.case_file import CaseFile
from ttrace.analysis.judge.rulings import Accusation, Excuse, Standing


class Rule:
    """Looks at a case, and says what it sees of some of its tensors.

    The order in which rules are asked decides nothing: an accusation counts by its weight, and
    excuses see what stands after all accusations.
    """

    def jobs(self, case: CaseFile) -> Sequence[Job[Any]]:
        """What is to be measured for this rule; jobs of all rules run together."""
        return ()

    def accuse(self, case: CaseFile, found: Sequence[Any]) -> Iterable[Accusation]:
        """What is wrong, or right, of which tensors; `found` is what came of the jobs."""
        return ()

    def excuse(self, case: CaseFile, standing: Standing) -> Iterable[Excuse]:
        """What does not count of what stands."""
        return ()
