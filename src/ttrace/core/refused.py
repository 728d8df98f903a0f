"""Refusals: what was found in something from outside, what was expected, and where."""

from __future__ import annotations

import reprlib

_SHOWN_CHARS = 80  # chosen: of what was found, as long as a line
_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = _SHOWN_CHARS


class Refused(ValueError):
    """What was found is not what was expected; `place` leads to it from the outermost value."""

    def __init__(self, found: object, expected: str, place: str = "") -> None:
        super().__init__(found, expected, place)
        self.found, self.expected, self.place = found, expected, place

    def __str__(self) -> str:
        found = self.found if isinstance(self.found, InWords) else shown(self.found)
        return f"{self.place.lstrip('.') or 'it'}: found {found}, expected {self.expected}"

    def within(self, step: str) -> Refused:
        """The same, seen from one value further out."""
        return Refused(self.found, self.expected, step + self.place)


class InWords(str):
    """What was found, in words and not as a value."""

    __slots__ = ()


def shown(value: object) -> str:
    """A value in a line, however large it is."""
    text = _REPR.repr(value)
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}..."
