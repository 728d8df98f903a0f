"""Modules that quantise in the reference, and not in the candidate: left out of the recipe.

    layers.1.attention.wo    float8_e4m3fn in the reference, no codes in the candidate

What that does to its output may be less than what flips of codes do, so values do not tell. That a
run was watched for casts does: where most modules make the codes that they make in the reference,
one that makes none is no other way to quantise. Enters: verdicts, and the codes of both runs.
Leaves: the verdicts, where outputs of such modules differ.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from ttrace.analysis.sources import Codes
from ttrace.core.enclosure import enclosures_of
from ttrace.core.finding import Finding, Specifics
from ttrace.core.ids import Kind
from ttrace.core.results import TensorResult, Verdict


def left_out_modules(
    results: Sequence[TensorResult], reference: Codes, candidate: Codes
) -> tuple[TensorResult, ...]:
    """None of the two: nobody watched that run."""
    if reference is None or candidate is None:
        return tuple(results)
    left_out = _left_out(reference, candidate)
    return tuple(
        _as_wrong(result, reference[result.id.module])
        if result.id.kind is Kind.OUTPUT and result.id.module in left_out and _differs(result)
        else result
        for result in results
    )


def _left_out(reference: Codes, candidate: Codes) -> frozenset[str]:
    """Nobody, where more modules make other codes than make the same."""
    assert reference is not None
    assert candidate is not None
    same = {path for path, codes in reference.items() if set(codes) == set(candidate.get(path, ()))}
    added = {path for path in candidate if path not in reference}
    idle = {path for path in reference if path not in candidate}
    alone = frozenset(path for path in idle if not _is_elsewhere(path, added))
    return alone if len(same) > len(reference) - len(same) else frozenset()


def _is_elsewhere(module: str, added: set[str]) -> bool:
    """Whether something that it lies in, or beside it, makes codes that the reference does not."""
    around = {enclosure.module for enclosure in enclosures_of(module)}
    return any(path in around or path.rpartition(".")[0] in around for path in added)


def _differs(result: TensorResult) -> bool:
    found = result.statistics
    return result.verdict is Verdict.PASS and found is not None and not found.equal


def _as_wrong(result: TensorResult, codes: Sequence[str]) -> TensorResult:
    return replace(
        result,
        verdict=Verdict.MISMATCH,
        finding=Finding.NO_CODES,
        ratio=math.inf,
        specifics=Specifics(reference_dtype=" and ".join(codes)),
    )
