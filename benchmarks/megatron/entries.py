"""One case through TTrace, as an entry of benchmarks/megatron.json: all that the tables need."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterable
from typing import Any

from benchmarks.megatron.cases import Case
from ttrace.core.results import CheckResult, TensorResult, Verdict
from ttrace.report.wording import blamed, finding, phase, place, with_commas
from zoo.bug import Bug, Family
from zoo.registry import find
from zoo.trials import Trial, Trials, blames

_KEPT = 5  # failing tensors of an entry, to look into


def entry(case: Case, trials: Trials) -> dict[str, Any]:
    start = time.monotonic()
    if case.bug:
        found = _of_bug(find(case.bug, Family.MEGATRON), trials)
    else:
        trial = trials.run(
            case.reference, case.candidate, steps=case.steps, isolates_equivalent=False
        )
        found = _of_trial(trial)
    return found | {"ranks": case.candidate.ranks, "seconds": time.monotonic() - start}


def _of_bug(bug: Bug, trials: Trials) -> dict[str, Any]:
    """The bug, and its twin, which is isolated as well: it must be silent in both."""
    wrong, twin = trials.bug(bug), trials.twin(bug)
    return {
        "source": bug.origin,
        "in_paper": bug.in_paper,
        "layout": bug.layout,
        "expected": [with_commas(blamed(blame), phase(blame)) for blame in bug.expected],
        "is_exact": bug.is_named_by(blames(wrong.told)),
        "bug": _of_trial(wrong),
        "twin": _of_trial(twin),
    }


def _of_trial(trial: Trial) -> dict[str, Any]:
    tensors, ratio = trial.plain.tensors, trial.largest_ratio
    return {
        "exit_code": trial.plain.exit_code,
        "isolated_exit_code": None if trial.isolated is None else trial.isolated.exit_code,
        "named": [place(culprit) for culprit in trial.told.culprits],
        "named_plain": [place(culprit) for culprit in trial.plain.culprits],
        "tensors": len(tensors),
        "judged": sum(r.verdict not in (Verdict.UNDECIDED, Verdict.EXTRA) for r in tensors),
        "largest": _number(max((r.ratio for r in tensors if r.ratio is not None), default=0.0)),
        "evidence": 0.0 if math.isnan(ratio) else _number(ratio),
        "failures": list(_failures(trial.plain)),
        "isolated_failures": [] if trial.isolated is None else list(_failures(trial.isolated)),
        "seconds": trial.seconds,
    }


def _failures(result: CheckResult) -> Iterable[str]:
    return map(_failure, itertools.islice(result.failures, _KEPT))


def _failure(result: TensorResult) -> str:
    statistic = "" if result.worst is None else result.worst.reading.statistic.value
    size = f"{result.verdict.value} {result.ratio or 0:.3g} {statistic}"
    return f"{result.id} {size} {finding(result)}"


def _number(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)
