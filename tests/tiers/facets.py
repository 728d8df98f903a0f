"""Collects what occurs in a test while it runs: in results, in traces, and in its parameters.

    with collecting() as facets:
        ...                        # {"verdict:mismatch", "phase:forward", "adapter:native", ...}

Results and traces are met where they are made, so that no test has to report what it sees.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import pytest

from tests.tiers.selection import SHARES
from ttrace.core.results import CheckResult
from ttrace.trace.reader import Trace

# Attributes of cases of the zoo that tell one kind of case from another.
_OF_CASES = ("family", "layout", "style", "recipe", "dtype", "package")
_WITHOUT_PAYLOAD = "full"


def facets_of_result(result: CheckResult) -> set[str]:
    """What a result says, by the members of enums in it."""
    facets = {f"outcome:{result.outcome}"}
    facets |= {f"verdict:{tensor.verdict}" for tensor in result.tensors}
    facets |= {f"finding:{tensor.finding}" for tensor in result.tensors if tensor.finding}
    facets |= {f"topic:{note.topic}" for note in result.notes}
    for culprit in result.culprits:
        facets |= {f"phase:{culprit.blame.phase}", f"reason:{culprit.reason}"}
        if culprit.blame.stage is not None:
            facets.add(f"stage:{culprit.blame.stage}")
        if culprit.diagnosis is not None:
            facets.add(f"mistake:{culprit.diagnosis.mistake}")
    return facets


def facets_of_trace(trace: Trace) -> set[str]:
    """Who recorded a trace, and how its bytes are stored."""
    ranks = trace.ranks.values()
    facets = {f"adapter:{rank.info.adapter}" for rank in ranks}
    for rank in ranks:
        payloads = {record.payload and record.payload.name for record in rank.records}
        facets |= {f"payload:{name or _WITHOUT_PAYLOAD}" for name in payloads}
        facets |= {f"kind:{record.id.kind}" for record in rank.records}
    return facets


def facets_of_test(item: pytest.Item) -> set[str]:
    """The test function, and what kind of case it is given."""
    name = item.nodeid.partition("[")[0]
    facets = {f"test:{name}"}
    if {"trials", "fresh_trials"} & set(getattr(item, "fixturenames", ())):
        facets.add(SHARES)
    callspec = getattr(item, "callspec", None)
    for value in callspec.params.values() if callspec is not None else ():
        for attribute in _OF_CASES:
            found = getattr(value, attribute, None)
            if isinstance(found, str) and found:
                facets.add(f"{attribute}:{found}")
    return facets


@contextmanager
def collecting() -> Iterator[set[str]]:
    """The facets of all results and traces that are made while it is open."""
    facets: set[str] = set()
    made, opened = CheckResult.__init__, Trace.open.__func__  # type: ignore[attr-defined]

    @wraps(made)
    def make(result: CheckResult, *args: Any, **named: Any) -> None:
        made(result, *args, **named)
        facets.update(facets_of_result(result))

    @wraps(opened)
    def open_(cls: type[Trace], *args: Any, **named: Any) -> Trace:
        trace: Trace = opened(cls, *args, **named)
        facets.update(facets_of_trace(trace))
        return trace

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CheckResult, "__init__", make)
        patch.setattr(Trace, "open", classmethod(open_))
        yield facets
