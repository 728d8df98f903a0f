"""A bug in a job of native PyTorch: one training function that obeys the names of its bugs.

The function is called on every rank with a process group in place: of one rank for the reference,
of several for the candidate. The correct twin is the same call without names.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection

import torch
import torch.distributed as dist

from ttrace.core.blame import Blame
from ttrace.lab.run import Function
from zoo.bug import Bug, Family

Train = Callable[[frozenset[str]], None]


def native_bug(
    name: str,
    title: str,
    origin: str,
    *expected: Blame,
    train: Train,
    layout: str,
    ranks: int = 2,
    steps: int = 1,
    family: Family = Family.NATIVE,
    is_hidden: bool = False,
    together: Collection[str] = (),
) -> Bug:
    """A bug that `train` plants when it is given its name, or the names of those `together`."""
    planted = frozenset(together or {name})
    return Bug(
        name=name,
        family=family,
        title=title,
        origin=origin,
        layout=layout,
        expected=expected,
        reference=Function(train_rank, arguments=(train, frozenset())),
        candidate=Function(train_rank, ranks=ranks, arguments=(train, planted)),
        twin=Function(train_rank, ranks=ranks, arguments=(train, frozenset())),
        together=tuple(together),
        steps=steps,
        is_hidden=is_hidden,
    )


def train_rank(train: Train, planted: frozenset[str]) -> None:
    """Everything one rank does."""
    # the logits are a view, as the warning says, but nobody changes them in place
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module")
    torch.manual_seed(0)
    train(planted)
    dist.barrier()
