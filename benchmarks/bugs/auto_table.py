"""The page docs/reference/bugs-auto.md: every bug by values, and by fingerprints first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

_HEAD = """# The same bugs by fingerprints

Written by `make bench-bugs-auto`. Every bug of [the list](bugs.md), and those of
[Megatron-Core](megatron.md) that tests try, was tried twice: with `--capture full`, and with
`--capture auto`, where runs record fingerprints, and isolated ones the values of suspected blocks.
The models are tiny, so fingerprints keep as few as {sums} sums, and blocks are most of the model:
what [fingerprints](../explanation/fingerprints.md) save shows with `make bench-gpu`, not here.

Same: whether both name the same places. Twin: whether the correct twin is silent in auto, in the
plain comparison and in the isolated one. Bytes: of all tensors that all runs of a bug recorded.
Seconds: of all its runs and comparisons, those of the reference too, on two shared cores.
"""
_COLUMNS = (
    *("bug", "named by auto", "same", "twin", "plain, full", "plain, auto"),
    *("bytes, full", "bytes, auto", "seconds, full", "seconds, auto"),
)
_TITLES = {
    "native": "Native PyTorch",
    "demo": "The demo's bugs",
    "megatron": "Megatron-Core",
}
_SHOWN = 3  # places of a row; more than two were never planted
_OUTCOMES = ("passes", "found", "undecided")


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """A bug, captured in one way."""

    named: list[str]
    plain: int  # exit code of the plain comparison
    size_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A bug, captured in both."""

    full: Side
    auto: Side
    same: bool
    is_silent: bool

    @classmethod
    def read(cls, kept: Mapping[str, Any]) -> Entry:
        sides = {name: Side(**kept[name]) for name in ("full", "auto")}
        return cls(**sides, same=kept["same"], is_silent=kept["is_silent"])

    def written(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def is_right(self) -> bool:
        return self.same and self.is_silent

    @property
    def told(self) -> str:
        beside = "" if self.same else f" instead of {_places(self.full)}"
        twin = "silent" if self.is_silent else "ALARM"
        seconds = f"{self.full.seconds} and {self.auto.seconds} s"
        return f"{_places(self.auto)}{beside}; twin {twin}; {seconds}"

    def line(self, name: str) -> str:
        sides = (self.full, self.auto)
        cells = (
            f"`{name}`",
            _places(self.auto),
            "yes" if self.same else f"no: {_places(self.full)}",
            "silent" if self.is_silent else "alarm",
            *(_OUTCOMES[side.plain] for side in sides),
            *(f"{side.size_bytes:,}" for side in sides),
            *(f"{side.seconds:.1f}" for side in sides),
        )
        return f"| {' | '.join(cells)} |"


def page(entries: Mapping[str, Entry], *, missing: int, sums: int) -> str:
    """A table for each family, then what they come to."""
    parts = [_HEAD.format(sums=sums)]
    for family, title in _TITLES.items():
        lines = [
            entry.line(key.partition("/")[2])
            for key, entry in entries.items()
            if key.startswith(f"{family}/")
        ]
        if lines:
            head = f"| {' | '.join(_COLUMNS)} |\n{'|---' * len(_COLUMNS)}|"
            parts.append(f"## {title}\n\n" + "\n".join([head, *lines]) + "\n")
    return "\n".join([*parts, _summary(list(entries.values()), missing)])


def _places(side: Side) -> str:
    more = len(side.named) - _SHOWN
    return "; ".join(side.named[:_SHOWN] or ["nothing"]) + (f"; {more} more" if more > 0 else "")


def _summary(entries: Sequence[Entry], missing: int) -> str:
    count = len(entries)
    bytes_ = [sum(e.full.size_bytes for e in entries), sum(e.auto.size_bytes for e in entries)]
    seconds = [sum(e.full.seconds for e in entries), sum(e.auto.seconds for e in entries)]
    told = (
        f"The same places: {sum(e.same for e in entries)} of {count}. "
        f"Silent twins: {sum(e.is_silent for e in entries)} of {count}.\n"
        f"Together {bytes_[0]:,} bytes by values and {bytes_[1]:,} by auto, "
        f"in {seconds[0]:,.0f} and {seconds[1]:,.0f} seconds.\n"
    )
    return told + (f"Not tried yet: {missing}.\n" if missing else "")
