"""Results of an isolated run of the model of plain_results, and whom they blame."""

from __future__ import annotations

from collections.abc import Mapping

from tests.support.plain_results import ROUNDED, STEP, id_of
from ttrace.analysis.localize import localize_isolated
from ttrace.core.blame import Blame
from ttrace.core.results import TensorResult, Verdict


def named(
    wrong: Mapping[str, Verdict] | str,
    modules: frozenset[str] | None = None,
    *,
    by_hand: bool = False,
) -> list[Blame]:
    if isinstance(wrong, str):
        wrong = dict.fromkeys(wrong.split(), Verdict.MISMATCH)
    assert set(wrong) <= set(STEP)
    results = [
        TensorResult(
            id=id_of(name),
            verdict=wrong.get(name, Verdict.PASS),
            order=order,
            statistics=ROUNDED,
            ratio=7.0 if name in wrong else 0.1,
        )
        for order, name in enumerate(STEP)
    ]
    culprits = localize_isolated(results, modules=modules, by_hand=by_hand)
    return [culprit.blame for culprit in culprits]


def wrong_by(ratios: Mapping[str, float], step: int = 0) -> list[TensorResult]:
    return [
        TensorResult(
            id=id_of(name, step),
            verdict=Verdict.MISMATCH if name in ratios else Verdict.PASS,
            order=order,
            statistics=ROUNDED,
            ratio=ratios.get(name, 0.1),
        )
        for order, name in enumerate(STEP)
    ]
