"""Whether all of a step's parameters that have a gradient were judged, in every respect.

A trainer's step reduces, keeps states and updates: none of it may be out of sight.
"""

from __future__ import annotations

from ttrace.analysis.checkup import sights
from ttrace.core.results import CheckResult, Verdict

_UNSEEN = (Verdict.UNDECIDED, Verdict.EXTRA)


def not_judged(result: CheckResult) -> tuple[str, ...]:
    """What of gradients, reduced gradients, states and updates is not whole."""
    ids = [tensor.id for tensor in result.tensors if tensor.verdict not in _UNSEEN]
    return tuple(
        f"{sight.watched.value} of {sight.expected - sight.seen} parameters"
        for sight in sights(ids)
        if sight.expected is not None and not sight.is_whole
    )
