"""The lines of a journal, one after the other: bounded, in their chain, and with their place.

Enters: a file that a stranger may have made, or that a process still writes. Leaves: key and text
of every whole line; a last line without its newline was torn by a kill and is left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ttrace.core.door import parse_json
from ttrace.core.limits import LINE_BYTES
from ttrace.core.refused import InWords, Refused
from ttrace.errors import CorruptTrace
from ttrace.trace.journal import Chain


class JournalLine(NamedTuple):
    """One line of a journal; `stop` is where it ends in the file, its newline included."""

    number: int
    key: str
    text: bytes  # of its value
    stop: int

    @property
    def value(self) -> Any:
        """Refused where it is no JSON."""
        return parse_json(self.text)


class Lines:
    """The whole lines of one journal; `is_torn` is known when they are all read."""

    def __init__(self, path: Path, rank: int, chain: Chain) -> None:
        self._path = path
        self._rank = rank
        self._chain = chain
        self._number = 0
        self.is_torn = False

    def __iter__(self) -> Iterator[JournalLine]:
        stop = 0
        with self._path.open("rb") as file:
            while text := file.readline(LINE_BYTES + 1):
                if not text.endswith(b"\n"):
                    if len(text) > LINE_BYTES:
                        too_long = InWords(f"more than {LINE_BYTES:,} bytes")
                        raise self.damaged(Refused(too_long, f"a line of at most {LINE_BYTES:,}"))
                    self.is_torn = True
                    return
                self._number += 1
                stop += len(text)
                try:
                    key, value = self._chain.unframe(text[:-1])
                except Refused as refused:
                    raise self.damaged(refused) from refused
                yield JournalLine(self._number, key, value, stop)

    def damaged(self, refused: Refused) -> CorruptTrace:
        """The error that the line which was given last is damaged."""
        return CorruptTrace(
            f"{self._path}:{self._number}: the journal of rank {self._rank} is damaged at this "
            f"line: {refused}; copy the trace again or trace the run again"
        )
