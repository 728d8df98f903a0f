"""Outputs of modules that the candidate's recipe left out, which no value of a boundary tells."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from ttrace.analysis.judge.case_file import CaseFile
from ttrace.analysis.judge.rules.base import Rule
from ttrace.analysis.judge.rulings import Accusation, Exhibit, Weight
from ttrace.analysis.recipes import out_of_recipe
from ttrace.core.finding import Finding, Specifics
from ttrace.core.formats import format_of
from ttrace.core.ids import Kind
from ttrace.core.results import Verdict

# Of the eps of codes. Rounding one operand of a product errs by about eps / 5 of it (uniformly over
# eps, by eps / sqrt(12), of values between 1 and 2); a few flips by less than eps / 50 (measured).
_SHARE = 1 / 16


class Recipe(Rule):
    """Those that are as far from the reference's as quantising takes them."""

    def accuse(self, case: CaseFile, found: Sequence[Any]) -> Iterable[Accusation]:
        missing = out_of_recipe(*case.sources.codes)
        for id_, exhibit in case.exhibits.items():
            is_output = id_.kind is Kind.OUTPUT and id_.module in missing
            if is_output and _is_as_far(exhibit, missing[id_.module]):
                yield Accusation(
                    id=id_,
                    verdict=Verdict.MISMATCH,
                    weight=Weight.HIDDEN,
                    finding=Finding.NO_CODES,
                    ratio=math.inf,
                    specifics=Specifics(reference_dtype=" and ".join(missing[id_.module])),
                )


def _is_as_far(exhibit: Exhibit, codes: Sequence[str]) -> bool:
    formats = [known for each in codes if (known := format_of(each)) is not None]
    if exhibit.statistics is None or not formats:
        return False
    return exhibit.statistics.relative_error >= _SHARE * min(known.eps for known in formats)
