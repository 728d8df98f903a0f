"""Code: the lines of a user's program that a report shows, as they were when it ran.

    Excerpt(file="model.py", line=91, function="FeedForward.forward", first=88, lines=("def ...",))

Values only: they are read by capture/code.py, and chosen for a culprit by analysis/code.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ttrace.errors import UsageError

CLIPPING, UPDATE = "@clipping", "@update"  # no path of a module begins so


@dataclass(frozen=True, slots=True, kw_only=True)
class Excerpt:
    """A few lines around the one that matters."""

    file: str
    line: int
    function: str
    first: int  # the number of the first line that is shown
    lines: tuple[str, ...]
    is_own: bool = True  # of the user's program, not of an installed package

    @property
    def place(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Code:
    """What one rank knows of its program: excerpts, and by module which of them are about it."""

    excerpts: tuple[Excerpt, ...] = ()
    forwards: dict[str, int] = field(default_factory=dict)  # what the module itself runs
    calls: dict[str, tuple[int, ...]] = field(default_factory=dict)  # the nearest own line first

    def __post_init__(self) -> None:
        told = {*self.forwards.values(), *(n for numbers in self.calls.values() for n in numbers)}
        if any(not 0 <= number < len(self.excerpts) for number in told):
            raise UsageError(f"there are {len(self.excerpts)} excerpts, found numbers {told}")

    def forward_of(self, module: str) -> tuple[Excerpt, ...]:
        number = self.forwards.get(module)
        return () if number is None else (self.excerpts[number],)

    def calls_of(self, name: str) -> tuple[Excerpt, ...]:
        return tuple(self.excerpts[number] for number in self.calls.get(name, ()))
