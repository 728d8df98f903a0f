"""A bug in the wild and its twin through the whole of TTrace."""

from __future__ import annotations

from zoo.programs.trial import function
from zoo.trials import Trial, Trials
from zoo.wild.bug import WildBug


def try_wild(trials: Trials, bug: WildBug) -> Trial:
    """The script as it stands, compared and isolated."""
    return trials.run(function(bug.reference), function(bug.candidate), steps=bug.steps)


def try_repaired(trials: Trials, bug: WildBug) -> Trial:
    """Its correct twin, which must be silent in both."""
    return trials.run(function(bug.twin_reference), function(bug.twin), steps=bug.steps)
