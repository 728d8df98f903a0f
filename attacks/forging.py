"""Forging traces: files edited so that every checksum is right.

forged = Forged(folder)              a rank of a trace, as plain data
forged.lines[3].value["mb"] = 7
forged.write()                       manifest and journal, sealed again
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ttrace.core.door import parse_json
from ttrace.trace import journal
from ttrace.trace.manifest import seal, unseal


@dataclass(slots=True)
class ForgedLine:
    """One line of a journal."""

    key: str
    value: Any


class Forged:
    """Manifest and journal of one rank, to be changed and written again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.manifest, digest = unseal((folder / journal.MANIFEST).read_bytes())
        del self.manifest["xxh3"]
        chain = journal.Chain(digest)
        lines = (folder / journal.JOURNAL).read_bytes().splitlines()
        self.lines = [ForgedLine(key, parse_json(text)) for key, text in map(chain.unframe, lines)]

    @property
    def records(self) -> list[Any]:
        return [line.value for line in self.lines if line.key == journal.RECORD]

    def write(self) -> None:
        """Seal and chain everything again, as it stands now."""
        text, digest = seal(self.manifest, indent=1)
        (self.folder / journal.MANIFEST).write_bytes(text)
        chain = journal.Chain(digest)
        with (self.folder / journal.JOURNAL).open("wb") as file:
            for line in self.lines:
                framed = chain.frame((line.key, journal.encoded(line.value)))
                chain.accept(framed)
                file.write(framed)
