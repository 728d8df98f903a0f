"""What a program is: a script that somebody could have written, run in two ways that must agree.

    Program(name="ddp-mlp", style="data parallel", reference=Run("ddp_mlp"),
            candidate=Run("ddp_mlp", ranks=2))
    Wrong(name="ddp-mlp/no-average", program="ddp-mlp", edits=(Edit(old, new),),
          expected=(Blame.at(Stage.LOSS, Phase.FORWARD),))

A script stands in `scripts/` and knows nothing of this: it runs as `torchrun script.py` does,
beside modules of its team (`team.py`). What makes it wrong, or another but equal program, is an
edit of its text.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from ttrace.core.blame import Blame
from ttrace.errors import UsageError

SCRIPTS = Path(__file__).parent / "scripts"


@dataclass(frozen=True, slots=True)
class Edit:
    """A change of a script: the text that stands there once, and what takes its place."""

    old: str
    new: str

    def apply(self, text: str) -> str:
        if text.count(self.old) != 1:
            raise UsageError(
                f"an edit replaces what stands in its script once, found {text.count(self.old)} "
                f"times: {self.old!r}"
            )
        return text.replace(self.old, self.new)


@dataclass(frozen=True, slots=True)
class Run:
    """A script on so many ranks, with the words of its command line, edited or as it stands."""

    script: str
    ranks: int = 1
    words: tuple[str, ...] = ()
    edits: tuple[Edit, ...] = ()
    folder: Path = SCRIPTS

    @property
    def path(self) -> Path:
        return self.folder / f"{self.script}.py"

    def text(self) -> str:
        """The script as it is run."""
        text = self.path.read_text()
        for edit in self.edits:
            text = edit.apply(text)
        return text

    def edited(self, edits: tuple[Edit, ...]) -> Run:
        return replace(self, edits=(*self.edits, *edits))


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """Two correct runs of the same step; `notes` are topics that the result must mention."""

    name: str
    style: str
    reference: Run
    candidate: Run
    steps: int = 1
    unjudged: str = ""  # why some parameters, gradients or updates cannot be judged
    notes: tuple[str, ...] = ()
    needs: tuple[str, ...] = field(default=())  # packages beside torch


def on_ranks(
    name: str,
    style: str,
    script: str,
    *edits: Edit,
    ranks: int = 2,
    steps: int = 2,
    unjudged: str = "",
    needs: tuple[str, ...] = (),
) -> Program:
    """A script on one rank and on several."""
    return Program(
        name=name,
        style=style,
        reference=Run(script, edits=edits),
        candidate=Run(script, ranks=ranks, edits=edits),
        steps=steps,
        unjudged=unjudged,
        needs=needs,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Wrong:
    """A program whose candidate an edit makes wrong, and what is then to be named."""

    name: str
    program: str
    title: str
    edits: tuple[Edit, ...]
    expected: tuple[Blame, ...]

    def candidate(self, program: Program) -> Run:
        return program.candidate.edited(self.edits)

    def is_named_by(self, blames: tuple[Blame, ...]) -> bool:
        return len(blames) == len(self.expected) and set(blames) == set(self.expected)
