"""Layers: modules that stand in a list of the model, and which of them a longer list repeats.

Enters: paths of modules, and what each recorded layer looks like. Leaves: for every layer of the
stated model the recorded one that it is like. The first and the last are their own: a first layer
may have no gradient of its input, and a last one may be followed by something else.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ttrace.core.estimate import Assumed, Assumption
from ttrace.errors import UsageError

_IN_LIST = re.compile(r"(?:(?P<parent>.*?)\.)?(?P<index>[0-9]{1,9})(?P<rest>\..*)?")
_NAMES_KEPT = 1 << 14  # chosen: every module of a large model


@dataclass(frozen=True, slots=True)
class Spot:
    """A module in the outermost list that it stands in."""

    parent: str
    index: int
    rest: str

    def at(self, index: int) -> str:
        """The same module of another layer."""
        return f"{self.parent}.{index}{self.rest}".lstrip(".")


@functools.lru_cache(_NAMES_KEPT)
def spot_of(path: str) -> Spot | None:
    """None of a module that stands in no list."""
    match = _IN_LIST.fullmatch(path)
    if match is None:
        return None
    return Spot(match["parent"] or "", int(match["index"]), match["rest"] or "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """The layers of one list; `sources` has the recorded layer that each is like."""

    parent: str
    sources: tuple[int, ...]
    last: int  # of the recorded ones

    def copies(self, index: int) -> Iterable[int]:
        """The layers that a recorded one stands for."""
        return (new for new, source in enumerate(self.sources) if source == index)

    def shifted(self, index: int, by: int) -> int:
        """A layer that a record of another one names; from outside of the list by its end."""
        end = len(self.sources) - 1
        return end if index == self.last and not by else min(max(0, index + by), end)


def asked_counts(given: str | None, lists: Mapping[str, int]) -> dict[str, int]:
    """`64`, or `encoder.layers=12,decoder.layers=64`, by list; UsageError where it names none."""
    counts = dict(lists)
    known = ", ".join(f"{name or '(model)'} with {n}" for name, n in lists.items()) or "none"
    for part in (given or "").split(",") if given else ():
        name, mark, number = part.strip().rpartition("=")
        if not mark and len(lists) != 1:
            raise UsageError(
                f"--layers {given} needs one list of layers, or LIST=N; the trace has {known}"
            )
        name = name if mark else next(iter(lists))
        if name not in lists or not number.isdecimal() or int(number) < 1:
            raise UsageError(
                f"--layers takes a number, or LIST=N of a list of the model: found {part!r}, the "
                f"trace has {known}"
            )
        counts[name] = int(number)
    return counts


def stacked(
    parent: str, looks: Mapping[int, object], count: int, *, high: bool
) -> tuple[Stack, Assumed | None]:
    """A list of so many layers; `high`: where two could be repeated, the last one is."""
    known = sorted(looks)
    first, last = known[0], known[-1]
    if count == len(known):
        return Stack(parent=parent, sources=tuple(known), last=last), None
    middle, about = known[1:-1], Assumption.LAYERS_ALIKE
    if not middle:
        middle = [last if high else first]
        if looks[first] != looks[last]:
            about = Assumption.LAYERS_DIFFER
    period = _period([looks[index] for index in middle])
    if period == len(middle) > 1:
        about = Assumption.LAYERS_UNEVEN
    inner = [middle[number % period] for number in range(max(0, count - 2))]
    sources = (first, *inner, last)[:count]
    assumed = Assumed(about=about, what=parent or "(model)", count=len(known))
    return Stack(parent=parent, sources=sources, last=last), assumed


def _period(looks: list[object]) -> int:
    """After how many layers they look the same again; all of them where they never do."""
    return next(
        period
        for period in range(1, len(looks) + 1)
        if all(looks[at] == looks[at - period] for at in range(period, len(looks)))
    )
