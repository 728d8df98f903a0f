"""Failures that the accept list allows, up to the bound of its entry."""

from __future__ import annotations

import math
from collections.abc import Iterable

from ttrace.analysis.judge.case_file import CaseFile
from ttrace.analysis.judge.rules.base import Rule
from ttrace.analysis.judge.rulings import FAILURES, Excuse, Standing
from ttrace.core.results import Verdict


class Acceptances(Rule):
    """What people decided to live with."""

    def excuse(self, case: CaseFile, standing: Standing) -> Iterable[Excuse]:
        for id_ in standing:
            fitting = [entry for entry in case.accept if entry.matches(id_)]
            if fitting:
                most = max(math.inf if e.bound is None else e.bound for e in fitting)
                yield Excuse(id=id_, verdict=Verdict.ACCEPTED, over=FAILURES, most=most)
