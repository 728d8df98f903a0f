"""Culprits with all that is known of them: the kind of mistake, what is expected, their code."""

from __future__ import annotations

from collections.abc import Sequence

from ttrace.analysis.code import with_code
from ttrace.analysis.diagnose.examine import with_diagnoses
from ttrace.analysis.diagnose.expected import with_expected
from ttrace.analysis.diagnose.recipe import with_recipes
from ttrace.analysis.sources import Sources
from ttrace.core.blame import Culprit
from ttrace.core.evidence import Detail


def described(
    culprits: Sequence[Culprit], details: Sequence[Detail], sources: Sources
) -> tuple[Culprit, ...]:
    """The same culprits, in the same order."""
    candidate = sources.candidate
    diagnosed = with_diagnoses(culprits, details)
    diagnosed = with_recipes(diagnosed, *sources.codes)
    wrong = {detail.id: detail.wrong_ranks for detail in details}
    return with_code(with_expected(diagnosed, candidate.modules), candidate.code, wrong)
