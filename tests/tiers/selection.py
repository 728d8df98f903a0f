"""Chooses the flows of a tier from what was recorded of them.

    covering(flows, wanted)    few cheap flows in which every wanted facet occurs
    rotating(flows, date)      a seventh of them, another one on each day of a week

Everything here is a function of its arguments: a test can ask for any day.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import date

# What a sentinel is for: each phase of a step in which something was blamed, and each adapter.
SENTINEL_FACETS = ("phase:", "adapter:")
# A test that shares trials with others (facets.py).
SHARES = "shares:trials"
# Chosen: a flow that costs no more than the limit of an unmarked test runs with those.
CHEAP_SECONDS = 1.0
DAYS = 7


@dataclass(frozen=True, slots=True)
class Flow:
    """A test of the whole flow: its node id, what it costs, and what occurs in it."""

    id: str
    seconds: float
    facets: frozenset[str]


def covering(flows: Iterable[Flow], wanted: Collection[str]) -> frozenset[str]:
    """The ids of flows in which all wanted facets occur that occur in any of them.

    Finding the smallest such set is hard; taking the most new facets a second, over and over, comes
    close. Then those go whose facets the others have as well:

        a: 1 s {x}   b: 2 s {x, y, z}   c: 1 s {y}      takes b (1.5 a second); a and c add nothing
    """
    wanted = set(wanted)
    open_ = {flow.id: flow for flow in flows if flow.facets & wanted}
    missing = wanted & {facet for flow in open_.values() for facet in flow.facets}
    taken: list[Flow] = []
    while missing:
        # Ties fall to the name, so that every process chooses the same.
        best = max(
            open_.values(), key=lambda flow: (len(flow.facets & missing) / flow.seconds, flow.id)
        )
        taken.append(open_.pop(best.id))
        missing -= best.facets
    for flow in sorted(taken, key=lambda flow: (-flow.seconds, flow.id)):
        others = [other.facets for other in taken if other is not flow]
        if flow.facets & wanted <= frozenset().union(*others):
            taken.remove(flow)
    return frozenset(flow.id for flow in taken)


def rotating(flows: Iterable[Flow], day: date) -> frozenset[str]:
    """The ids of the flows whose turn it is on this day; every flow has one turn a week."""
    return frozenset(flow.id for flow in flows if _turn(flow.id) == day.toordinal() % DAYS)


def _turn(id_: str) -> int:
    return int.from_bytes(hashlib.sha256(id_.encode()).digest()[:4]) % DAYS


def sentinels(flows: Collection[Flow]) -> frozenset[str]:
    """What `make test` runs of them: one for each phase and adapter, and all that are cheap.

    One that shares its trials with others is cheap where these ran before.
    """
    wanted = {f for flow in flows for f in flow.facets if f.startswith(SENTINEL_FACETS)}
    cheap = {f.id for f in flows if f.seconds <= CHEAP_SECONDS and SHARES not in f.facets}
    met = {f for flow in flows if flow.id in cheap for f in flow.facets}
    others = [flow for flow in flows if flow.id not in cheap]
    return frozenset(cheap) | covering(others, wanted - met)


def gate(flows: Collection[Flow], day: date, pinned: Collection[str]) -> frozenset[str]:
    """What CI runs of them: all that occurs anywhere, a seventh of the rest, and pinned ones."""
    wanted = {facet for flow in flows for facet in flow.facets}
    known = {flow.id for flow in flows}
    return covering(flows, wanted) | rotating(flows, day) | (known & set(pinned))
