"""The lines of a journal, one after the other: bounded, in their chain, and with their place.

Enters: a file that a stranger may have made, or that a process still writes. Leaves: key and text
of every whole line; a last line without its newline was torn by a kill and is left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO

from ttrace.core.limits import LINE_BYTES
from ttrace.core.refused import InWords, Refused
from ttrace.errors import CorruptTrace
from ttrace.trace.journal import Chain
from ttrace.trace.store import PathOrUrl


class Lines:
    """The whole lines of one journal, each as its key and the text of its value.

    `stop` is where the last one that was given ends in the file, its newline included. `is_torn`
    is known when they are all read.
    """

    def __init__(self, path: PathOrUrl, rank: int, chain: Chain, file: IO[bytes]) -> None:
        self._path = path
        self._file = file
        self._rank = rank
        self._chain = chain
        self._number = 0
        self.stop = 0
        self.is_torn = False

    def __iter__(self) -> Iterator[tuple[str, bytes]]:
        unframe = self._chain.unframe
        with self._file as file:
            while text := file.readline(LINE_BYTES + 1):
                if not text.endswith(b"\n"):
                    if len(text) > LINE_BYTES:
                        too_long = InWords(f"more than {LINE_BYTES:,} bytes")
                        raise self.damaged(Refused(too_long, f"a line of at most {LINE_BYTES:,}"))
                    self.is_torn = True
                    return
                self._number += 1
                self.stop += len(text)
                try:
                    line = unframe(text[:-1])
                except Refused as refused:
                    raise self.damaged(refused) from refused
                yield line

    def damaged(self, refused: Refused) -> CorruptTrace:
        """The error that the line which was given last is damaged."""
        return CorruptTrace(
            f"{self._path}:{self._number}: the journal of rank {self._rank} is damaged at this "
            f"line: {refused}; copy the trace again or trace the run again"
        )
