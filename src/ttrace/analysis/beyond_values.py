"""Verdicts that no value gives: who made a step, how it was rounded, and what was quantised.

Enters: every verdict, as tolerances give it. Leaves: the same, with what they do not tell.
"""

from __future__ import annotations

from collections.abc import Sequence

from ttrace.analysis.comparison import Compared
from ttrace.analysis.left_out import not_left_out_by_all
from ttrace.analysis.left_out_modules import left_out_modules
from ttrace.analysis.overflow import left_out
from ttrace.analysis.rounded_alike import rounded_alike
from ttrace.analysis.sources import Sources
from ttrace.analysis.tasks import RunJobs
from ttrace.core.results import TensorResult


def beyond_values(
    results: Sequence[TensorResult], compared: Compared, sources: Sources, run: RunJobs
) -> tuple[TensorResult, ...]:
    quantised = left_out_modules(left_out(results), *sources.codes)
    made = not_left_out_by_all(quantised, sources.reference, sources.candidate)
    if not any(source.rounds_updates for source in sources.perturbed):
        return made
    return rounded_alike(made, compared, sources.reference, sources.candidate, run)
