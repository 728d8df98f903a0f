"""All rules: a file or a class each. One from outside is an entry point of `ttrace.rules`.

[project.entry-points."ttrace.rules"]
drift = "ttrace_drift:Drift"        # a class of the form of rules.base.Rule
"""

from __future__ import annotations

from importlib.metadata import entry_points

from ttrace.analysis.judge.rules.acceptance import Acceptances
from ttrace.analysis.judge.rules.base import Rule
from ttrace.analysis.judge.rules.precision import LostBits
from ttrace.analysis.judge.rules.presence import Presence
from ttrace.analysis.judge.rules.recipe import Recipe
from ttrace.analysis.judge.rules.replicas import Replicas
from ttrace.analysis.judge.rules.shared_draws import SharedDraws
from ttrace.analysis.judge.rules.steps import Overflow, PartialSteps, ReducedElsewhere
from ttrace.analysis.judge.rules.values import Infinities, InTolerance, MovedTokens, UnknownSplit

__all__ = ["RULES", "Rule", "find_rules"]

_GROUP = "ttrace.rules"
RULES: tuple[type[Rule], ...] = (
    *(Presence, InTolerance, UnknownSplit, Infinities, MovedTokens, Replicas, LostBits),
    *(PartialSteps, Recipe, SharedDraws, Overflow, ReducedElsewhere, Acceptances),
)


def find_rules() -> list[Rule]:
    """Those of TTrace, and those of installed packages."""
    installed = sorted(entry_points(group=_GROUP), key=lambda point: point.name)
    return [rule() for rule in RULES] + [point.load()() for point in installed]
