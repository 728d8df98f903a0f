"""Tensors that cannot be measured: one run lacks them, or they cannot be put together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from ttrace.analysis.judge.case_file import CaseFile
from ttrace.analysis.judge.rules.base import Rule
from ttrace.analysis.judge.rulings import Accusation, Weight
from ttrace.core.finding import Finding, Specifics
from ttrace.core.logical import Alignment
from ttrace.core.results import Verdict

_SHOWN_GAPS = 3  # chosen: the first say where to look


class Presence(Rule):
    """Where the recording of the run that lacks a tensor had faults, nobody knows who is wrong."""

    def accuse(self, case: CaseFile, found: Sequence[Any]) -> Iterable[Accusation]:
        sources = case.sources
        lacking = {
            Verdict.MISSING: sources.candidate.faults,
            Verdict.INCOMPLETE: sources.candidate.faults,
            Verdict.EXTRA: sources.reference.faults,
        }
        for id_, exhibit in case.exhibits.items():
            if exhibit.measured is not None:
                continue
            verdict, finding, specifics = _why(exhibit.alignment)
            if faults := lacking.get(verdict):
                verdict = Verdict.UNDECIDED
                specifics = replace(specifics or Specifics(), fault=faults[0])
            weight = Weight.OPEN if verdict is Verdict.UNDECIDED else Weight.WRONG
            yield Accusation(
                id=id_, verdict=verdict, weight=weight, finding=finding, specifics=specifics
            )


def _why(alignment: Alignment) -> tuple[Verdict, Finding, Specifics | None]:
    reference, candidate = alignment.reference, alignment.candidate
    if alignment.names_rows:
        return Verdict.PASS, Finding.SAME_ROWS, None
    if alignment.reference_problem:
        problem = Specifics(problem=alignment.reference_problem)
        return Verdict.UNDECIDED, Finding.REFERENCE_CANNOT_BE_ALIGNED, problem
    if alignment.candidate_problem:
        problem = Specifics(problem=alignment.candidate_problem)
        if alignment.uncertain:
            return Verdict.UNDECIDED, Finding.NO_PLACE_KNOWN, problem
        return Verdict.SHAPE, Finding.CANNOT_BE_ALIGNED, problem
    if candidate is None:
        return Verdict.MISSING, Finding.ONLY_IN_REFERENCE, None
    if reference is None:
        return Verdict.EXTRA, Finding.ONLY_IN_CANDIDATE, None
    if alignment.pair is not None:
        return Verdict.UNDECIDED, Finding.CELLS_DO_NOT_FIT, None
    if reference.gaps:
        gaps = Specifics(gaps=(str(reference.gaps[0]),))
        return Verdict.UNDECIDED, Finding.REFERENCE_LACKS, gaps
    gaps = Specifics(gaps=tuple(map(str, candidate.gaps[:_SHOWN_GAPS])))
    return Verdict.INCOMPLETE, Finding.NO_RANK_HOLDS, gaps
