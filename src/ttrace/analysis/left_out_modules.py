"""Verdicts on modules that the candidate's recipe leaves out (recipes.py).

What that does to an output may be less than what flips of codes do, so tolerances do not tell. But
it is about what quantising does, and flips are far less where a module is compared by itself.
Enters: verdicts, and the codes of both runs. Leaves: the verdicts, where such an output is that far
from the reference's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from ttrace.analysis.recipes import Codes, out_of_recipe
from ttrace.core.finding import Finding, Specifics
from ttrace.core.formats import format_of
from ttrace.core.ids import Kind
from ttrace.core.results import TensorResult, Verdict

# Of the eps of codes. Rounding one operand of a product errs by about eps / 5 of it (uniformly over
# eps, by eps / sqrt(12), of values between 1 and 2); a few flips by less than eps / 50 (measured).
_SHARE = 1 / 16


def left_out_modules(
    results: Sequence[TensorResult], reference: Codes, candidate: Codes
) -> tuple[TensorResult, ...]:
    missing = out_of_recipe(reference, candidate)
    return tuple(
        _as_wrong(result, missing[result.id.module])
        if result.id.kind is Kind.OUTPUT
        and result.id.module in missing
        and _is_as_far(result, missing[result.id.module])
        else result
        for result in results
    )


def _is_as_far(result: TensorResult, codes: Sequence[str]) -> bool:
    found = result.statistics
    formats = [known for each in codes if (known := format_of(each)) is not None]
    if result.verdict is not Verdict.PASS or found is None or not formats:
        return False
    return found.relative_error >= _SHARE * min(known.eps for known in formats)


def _as_wrong(result: TensorResult, codes: Sequence[str]) -> TensorResult:
    return replace(
        result,
        verdict=Verdict.MISMATCH,
        finding=Finding.NO_CODES,
        ratio=math.inf,
        specifics=Specifics(reference_dtype=" and ".join(codes)),
    )
