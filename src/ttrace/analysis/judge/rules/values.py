"""Values: how far they are from the reference's, beside what rounding explains.

error norm 2e-3 where 1e-3 is allowed      MISMATCH, and which statistic shows it best
infinite where the reference is not        NONFINITE, whatever else is wrong
more tokens sent elsewhere than by noise   MISMATCH of the tokens
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from ttrace.analysis.judge.case_file import CaseFile
from ttrace.analysis.judge.rules.base import Rule
from ttrace.analysis.judge.rules.precision import has_lost_bits
from ttrace.analysis.judge.rulings import Accusation, Exhibit, Weight
from ttrace.core.finding import Finding
from ttrace.core.ids import Kind
from ttrace.core.results import Verdict
from ttrace.core.statistics import Statistic, Statistics, Tolerance

_KINDS_OF_ERROR = {
    Statistic.NORM: Finding.NORM,
    Statistic.SHIFT: Finding.SHIFT,
    Statistic.CHOICES: Finding.CHOICES,
}
_BESIDE_A_FACTOR = 0.05  # chosen: of the error, where nearly all of it is a factor


class InTolerance(Rule):
    """By what perturbed references allow; without one nothing can be said but that it is equal."""

    def accuse(self, case: CaseFile, found: Sequence[Any]) -> Iterable[Accusation]:
        for id_, exhibit in case.exhibits.items():
            if exhibit.statistics is not None:
                verdict, weight, finding = _judge(exhibit, exhibit.statistics)
                yield Accusation(id=id_, verdict=verdict, weight=weight, finding=finding)


def _judge(exhibit: Exhibit, found: Statistics) -> tuple[Verdict, Weight, Finding | None]:
    tolerance = exhibit.tolerance
    if found.nonfinite_reference or found.nonfinite_candidate:
        return Verdict.UNDECIDED, Weight.OPEN, Finding.REFERENCE_NONFINITE  # see Infinities
    if exhibit.is_wrong and tolerance is not None:
        decisive = max(exhibit.judgements, key=lambda judgement: judgement.ratio)
        kind = kind_of_error(found, decisive.reading.statistic, tolerance)
        return Verdict.MISMATCH, Weight.WRONG, kind
    if found.equal:
        return Verdict.PASS, Weight.PASS, Finding.EQUAL
    if tolerance is None:
        return Verdict.UNDECIDED, Weight.OPEN, Finding.NO_YARDSTICK
    return Verdict.PASS, Weight.PASS, None


def kind_of_error(found: Statistics, decisive: Statistic, tolerance: Tolerance) -> Finding:
    residual = found.residual
    if found.gain != 0 and residual < _BESIDE_A_FACTOR * found.relative_error:
        return Finding.CONSTANT_FACTOR if abs(found.gain - 1) > 0.01 else Finding.FACTOR
    if decisive is Statistic.GAIN:
        is_all = residual * found.reference_norm <= tolerance.error_norm
        return Finding.FACTOR if is_all else Finding.AVERAGE_FACTOR
    return _KINDS_OF_ERROR.get(decisive, Finding.PLACE)


class UnknownSplit(Rule):
    """Wrong parameters whose parts were taken as chunks, since nobody says how they are split."""

    def accuse(self, case: CaseFile, found: Sequence[Any]) -> Iterable[Accusation]:
        for id_, exhibit in case.exhibits.items():
            candidate = exhibit.alignment.candidate
            if id_.kind is not Kind.PARAM or candidate is None or not candidate.notes:
                continue
            if exhibit.is_wrong or has_lost_bits(case, exhibit):
                yield Accusation(
                    id=id_,
                    verdict=Verdict.MISMATCH,
                    weight=Weight.UNKNOWN_SPLIT,
                    finding=Finding.TAKEN_AS_CHUNKS,
                )


class Infinities(Rule):
    """Those that a perturbed reference has at the same places are there on purpose."""

    def accuse(self, case: CaseFile, found: Sequence[Any]) -> Iterable[Accusation]:
        for id_, exhibit in case.exhibits.items():
            found_here = exhibit.statistics
            if found_here is None:
                continue
            verdict, finding = Verdict.NONFINITE, Finding.NONFINITE
            if found_here.nonfinite_reference:
                is_open = exhibit.tolerance is None
                verdict = Verdict.UNDECIDED if is_open else Verdict.NONFINITE
                finding = Finding.REFERENCE_NONFINITE if is_open else Finding.OTHER_INFINITIES
            elif not found_here.nonfinite_candidate:
                continue
            yield Accusation(id=id_, verdict=verdict, weight=Weight.INFINITE, finding=finding)


class MovedTokens(Rule):
    """Tokens that a router sent elsewhere: more than noise moves, and than had moved before."""

    def accuse(self, case: CaseFile, found: Sequence[Any]) -> Iterable[Accusation]:
        for id_, exhibit in case.exhibits.items():
            moved, allowed = exhibit.moved, exhibit.allowed_moves
            if moved > allowed:
                yield Accusation(
                    id=id_,
                    verdict=Verdict.MISMATCH,
                    weight=Weight.MOVED,
                    finding=Finding.TOKENS_MOVED,
                    ratio=moved / allowed if allowed else math.inf,
                )
