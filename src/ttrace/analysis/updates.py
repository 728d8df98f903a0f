"""Verdicts on what an optimizer did: whether it made its step, on which ranks, and how it rounded.

Enters: every verdict, as tolerances give it. Leaves: the same, with what they do not tell.
"""

from __future__ import annotations

from collections.abc import Sequence

from ttrace.analysis.comparison import Compared
from ttrace.analysis.left_out import not_left_out_by_all
from ttrace.analysis.overflow import left_out
from ttrace.analysis.rounded_alike import rounded_alike
from ttrace.analysis.sources import Sources
from ttrace.analysis.tasks import RunJobs
from ttrace.core.results import TensorResult


def with_updates(
    results: Sequence[TensorResult], compared: Compared, sources: Sources, run: RunJobs
) -> tuple[TensorResult, ...]:
    made = not_left_out_by_all(left_out(results), sources.reference, sources.candidate)
    if not any(source.rounds_updates for source in sources.perturbed):
        return made
    return rounded_alike(made, compared, sources.reference, sources.candidate, run)
