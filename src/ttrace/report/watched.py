"""A watched run in words.

replicas agree: 1,000 steps, 6 gradients, 6 parameters and 2 buffers on 2 ranks
DRIFT: step 3: parameter 2.weight differs between replicas: rank 1 from ranks 0, 2, 3
NOTHING TO COMPARE: the run has one process
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ttrace.core.drift import SharedKind, WatchedRun, in_words
from ttrace.report.numbers import counted

_MOST_LINES = 8  # chosen: more is read in the file
_NOTHING = "NOTHING TO COMPARE: "


def watched_lines(found: WatchedRun) -> Iterator[str]:
    """The answer first, then what limits it."""
    yield _answer(found)
    for drift in found.drifts[1:_MOST_LINES]:
        yield f"  {in_words(drift)}"
    more = len(found.drifts[_MOST_LINES:]) + found.more_drifts
    if more:
        yield f"  and {counted(more, 'more tensor')}"
    if found.broke_off is not None:
        yield f"  watching broke off after {_steps(found.watched)}: {found.broke_off}"
    elif not found.ended:
        yield "  the run did not come to its end"
    if any(found.unjudged.values()):
        names = f": {', '.join(found.names)}" if found.names else ""
        yield (
            f"  not judged, since ranks differed when they were seen first: "
            f"{_kinds(found.unjudged)}{names}"
        )


def _answer(found: WatchedRun) -> str:
    if found.drifts:
        return f"DRIFT: {in_words(found.drifts[0])}"
    if found.world_size == 1:
        return f"{_NOTHING}the run has one process, or no process group"
    if found.steps == 0:
        return f"{_NOTHING}the run made no step"
    if not found.watched:
        return f"{_NOTHING}none of {_steps(found.steps)} was watched"
    if not any(found.compared.values()):
        return (
            f"{_NOTHING}no two of {found.world_size} ranks hold the same part of anything: "
            "sharded parameters have no replicas"
        )
    agreed = "replicas agree" if found.broke_off is None else "replicas agreed"
    what = f"{_steps(found.watched)}, {_kinds(found.compared)}"
    return f"{agreed}: {what} on {counted(found.world_size, 'rank')}"


def _steps(count: int) -> str:
    return f"{count:,} step{'s' * (count != 1)}"


def _kinds(counts: Mapping[SharedKind, int]) -> str:
    parts = [counted(count, kind.value) for kind, count in counts.items() if count]
    return " and ".join(filter(None, (", ".join(parts[:-1]), parts[-1])))
