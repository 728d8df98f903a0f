"""Configuration: in what two runs differ, and what is to be expected of that.

    ranks     1                   4            expected: that is what is compared
    lr        0.00025             0.0005       differs
    torch     2.13.0              2.13.0       the same

A seed that nobody set is drawn anew in every run, and says nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ttrace.core.evidence import RunFacts
from ttrace.core.finding import Topic
from ttrace.core.hyperparameter import Difference, Owner
from ttrace.core.ids import display_module
from ttrace.core.results import CheckResult

_SEED = "torch seed"
_DRAWN = 1 << 32  # torch draws seeds of 64 bits; people write small ones
_NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One thing in which runs may differ."""

    name: str
    reference: str
    candidate: str
    is_expected: bool = False  # to differ between a run of one rank and one of many

    @property
    def differs(self) -> bool:
        return self.reference != self.candidate


def settings(result: CheckResult) -> tuple[Setting, ...]:
    """What was told of both runs; nothing where one is not told of."""
    runs = {run.role: run for run in reversed(result.runs)}
    reference, candidate = runs.get("reference"), runs.get("candidate")
    if reference is None or candidate is None:
        return ()
    facts = [
        Setting(name=name, reference=value(reference), candidate=value(candidate), is_expected=True)
        for name, value in _EXPECTED.items()
    ]
    facts += [
        Setting(name=name, reference=value(reference), candidate=value(candidate))
        for name, value in _OTHERS.items()
    ]
    mine, theirs = (run.versions | run.facts for run in (reference, candidate))
    facts += [
        Setting(name=name, reference=mine.get(name, _NONE), candidate=theirs.get(name, _NONE))
        for name in dict.fromkeys((*mine, *theirs))
        if not (name == _SEED and _is_drawn(mine.get(name)) and _is_drawn(theirs.get(name)))
    ]
    return (*facts, *map(_number, _differences(result)))


_EXPECTED: dict[str, Callable[[RunFacts], str]] = {
    "ranks": lambda run: str(run.world_size),
    "mesh": lambda run: " x ".join(f"{axis} {size}" for axis, size in run.mesh.items()) or _NONE,
}
_OTHERS: dict[str, Callable[[RunFacts], str]] = {
    "dtype": lambda run: ", ".join(run.dtypes),
    "device": lambda run: run.device,
    "adapter": lambda run: run.adapter,
    "steps": lambda run: str(run.steps),
}


def _is_drawn(seed: str | None) -> bool:
    return seed is not None and seed.isdecimal() and int(seed) >= _DRAWN


def _differences(result: CheckResult) -> Iterator[Difference]:
    """Hyperparameters: of culprits, and without an effect; each once."""
    noted = (note.difference for note in result.notes if note.topic is Topic.OTHER_NUMBER)
    of_culprits = (each for culprit in result.culprits for each in culprit.differences)
    found = [*of_culprits, *(each for each in noted if each is not None)]
    return iter(dict.fromkeys(found))


def _number(found: Difference) -> Setting:
    owner = f" of {display_module(found.owned[0])}" if found.owner is Owner.MODULE else ""
    where = f" (ranks {', '.join(map(str, found.ranks))})" if found.ranks else ""
    return Setting(
        name=f"{found.name}{owner}",
        reference=", ".join(f"{value:.6g}" for value in found.reference),
        candidate=", ".join(f"{value:.6g}" for value in found.candidate) + where,
    )
