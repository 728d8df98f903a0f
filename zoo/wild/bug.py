"""What a bug in the wild is: a script that a user writes, and a released package that is wrong.

    scripts/NAME.py     the script with the three lines of TTrace; `repair` makes it right
    proofs/NAME.py      the bug alone, without TTrace: exits with 0 while it is there, 1 when fixed

The repair is what the user can do as long as the package is wrong: an edit of the script.
"""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from ttrace.core.blame import Blame
from zoo.programs.program import Edit, Run

_HERE = Path(__file__).parent
_SECONDS = 120  # chosen: a proof needs seconds, most of them for imports


class Answer(StrEnum):
    """What a proof says."""

    CONFIRMED = "confirmed"
    FIXED = "fixed"
    FAILED = "failed"  # it could not tell


@dataclass(frozen=True, slots=True, kw_only=True)
class WildBug:
    """A bug of a package, in the version in which it was found."""

    name: str
    package: str
    version: str
    link: str = ""  # empty: no issue is known
    title: str
    expected: tuple[Blame, ...]
    repair: tuple[Edit, ...]
    steps: int = 1
    shows_alone: bool = False  # wrong on one process as well: the reference is repaired
    changes_reference: bool = False  # the repair makes another model: the twin's reference has it
    baseline: str = ""  # a script of its own for the reference

    @property
    def reference(self) -> Run:
        return self._run(self.baseline, edits=self.repair if self.shows_alone else ())

    @property
    def candidate(self) -> Run:
        return self._run(ranks=2)

    @property
    def twin(self) -> Run:
        return self._run(ranks=2, edits=self.repair)

    @property
    def twin_reference(self) -> Run:
        return self._run(edits=self.repair) if self.changes_reference else self.reference

    @property
    def proof(self) -> Path:
        return _HERE / "proofs" / f"{self.name}.py"

    @property
    def installed(self) -> str | None:
        """The version at hand; none where the package is not installed."""
        try:
            return importlib.metadata.version(self.package).split("+")[0]
        except importlib.metadata.PackageNotFoundError:
            return None

    def is_named_by(self, blames: tuple[Blame, ...]) -> bool:
        return len(blames) == len(self.expected) and set(blames) == set(self.expected)

    def proved(self) -> tuple[Answer, str]:
        """What the proof says, and what it printed."""
        done = subprocess.run(
            [sys.executable, "-W", "ignore", str(self.proof)],
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
        # Python itself exits with 1 after an exception, which tells nothing of the bug.
        if done.returncode not in (0, 1) or "Traceback" in done.stderr:
            return Answer.FAILED, done.stderr
        return (Answer.FIXED if done.returncode else Answer.CONFIRMED), done.stdout

    def _run(self, script: str = "", ranks: int = 1, edits: tuple[Edit, ...] = ()) -> Run:
        return Run(script or self.name, ranks=ranks, edits=edits, folder=_HERE / "scripts")
