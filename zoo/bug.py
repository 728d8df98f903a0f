"""What a bug of the zoo is: a training job, right and wrong, and the answer a checker has to find.

    Bug(name="expert-divisor", family=Family.NATIVE, ...
        expected=(Blame.of("layers.1.experts", phase=Phase.GRADIENT_REDUCTION),),
        reference=Function(train),                                      # one process
        candidate=Function(train, ranks=2, arguments=("expert-divisor",)),
        twin=Function(train, ranks=2))                                  # the same without the bug

It is plain data: functions travel to the ranks by their names, and nothing here runs or judges.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from ttrace.core.blame import Blame, Phase
from ttrace.errors import UsageError
from ttrace.lab.run import Function


class Family(StrEnum):
    """What a bug is planted in."""

    NATIVE = "native"  # PyTorch by hand, DDP, FSDP2, DTensor
    DEMO = "demo"  # the demo that the package brings
    MEGATRON = "megatron"  # the installed megatron-core
    LOW_PRECISION = "low-precision"  # quantised products, with torchao or by hand


@dataclass(frozen=True, slots=True, kw_only=True)
class Bug:
    """One silent mistake, or several planted together, and its correct twin."""

    name: str
    family: Family
    title: str
    origin: str  # where it was real: an upstream report or fix, or what family it stands for
    layout: str  # in words
    expected: tuple[Blame, ...]  # what is itself wrong, all of it
    reference: Function
    candidate: Function
    twin: Function
    together: tuple[str, ...] = ()  # the bugs of which this is the sum
    steps: int = 1
    needs: tuple[str, ...] = ()  # packages beside torch
    attempts: int = 1  # a race is tried again until it shows
    is_hidden: bool = False  # too small for the norms of a plain comparison
    in_paper: bool = False  # one of the 14 of the TTrace paper

    def __post_init__(self) -> None:
        if not (self.title and self.origin and self.expected):
            raise UsageError(f"bug {self.name} needs a title, an origin, and what must be named")
        if self.candidate == self.twin or self.candidate.ranks != self.twin.ranks:
            raise UsageError(
                f"the twin of bug {self.name} must be a correct run of the candidate's layout, "
                f"found {self.twin} beside {self.candidate}"
            )

    @property
    def ranks(self) -> int:
        return self.candidate.ranks

    def is_named_by(self, blames: Sequence[Blame]) -> bool:
        """Whether all that is itself wrong is blamed, and nothing else."""
        return len(blames) == len(self.expected) and set(blames) == set(self.expected)


def each(modules: Iterable[str], phase: Phase) -> tuple[Blame, ...]:
    """Every one of these modules is to be named."""
    return tuple(Blame.of(module, phase=phase) for module in modules)
