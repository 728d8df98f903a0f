"""Meetings: what ranks of one process bring to a collective, and what they send each other.

Enters: tensors of each rank, and what is to be done once all have come. Leaves: it is done, by the
last who comes, in a thread of its own: modes and settings of a rank's thread must not reach it. A
rank that comes to another collective than the others is told so. It must not know collectives.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from ttrace.lab.simulated.exchanges import Do
from ttrace.lab.simulated.turns import Turns


class GroupRank(NamedTuple):
    """A rank in a group; groups are known by their name and the ranks of the world in them."""

    group: str
    ranks: tuple[int, ...]
    rank: int


@dataclass(slots=True)
class Pending:
    """Something that was asked for, whether it is done, and how it is called."""

    what: str
    size: int = 1
    given: dict[int, Any] = field(default_factory=dict)  # by rank of the group
    is_done: bool = False

    def is_over(self) -> bool:
        return self.is_done

    def say(self) -> str:
        return f"{self.what} ({len(self.given)} of {self.size} ranks came)"


@dataclass(slots=True, eq=False)
class _Receipt:
    """Somebody waits for mail: from a rank of the group, or from anybody."""

    sender: int | None
    tag: int
    into: list[torch.Tensor]
    pending: Pending
    came_from: int | None = None

    def takes(self, sender: int, tag: int) -> bool:
        return self.sender in (None, sender) and self.tag == tag


class Meetings:
    """Of all groups of all ranks of a process."""

    def __init__(self, turns: Turns) -> None:
        self.turns = turns
        self._counts: Counter[GroupRank] = Counter()
        self._open: dict[tuple[str, tuple[int, ...], int], Pending] = {}
        self._mail: defaultdict[GroupRank, deque[tuple[int, int, list[torch.Tensor]]]]
        self._mail = defaultdict(deque)  # by who is to get it: sender, tag, tensors
        self._receipts: defaultdict[GroupRank, list[_Receipt]] = defaultdict(list)
        self._hands = ThreadPoolExecutor(1, "simulated-collectives", _one_thread)

    def come(self, member: GroupRank, what: str, given: Any, do: Do) -> Pending:
        """Bring something to the next collective of the group; the last one has it done."""
        number = self._counts[member] = self._counts[member] + 1
        key = (member.group, member.ranks, number)
        meeting = self._open.setdefault(
            key, Pending(_named(what, member, number), len(member.ranks))
        )
        mine = _named(what, member, number)
        if meeting.what != mine:
            others = sorted(meeting.given)
            raise RuntimeError(
                f"rank {member.rank} of its group came to {mine}, where ranks {others} of the same "
                f"group came to {meeting.what}: all ranks of a group must make the same calls in "
                "the same order"
            )
        meeting.given[member.rank] = given
        if len(meeting.given) == meeting.size:
            del self._open[key]
            self._do(do, [meeting.given[rank] for rank in range(meeting.size)])
            meeting.is_done = True
        return meeting

    def send(
        self, member: GroupRank, receiver: int, tag: int, tensors: Sequence[torch.Tensor]
    ) -> None:
        """The tensors as they are now; nobody waits."""
        copies: list[torch.Tensor] = []
        self._do(lambda all_: copies.extend(each.detach().clone() for each in all_), tensors)
        to = member._replace(rank=receiver)
        self._mail[to].append((member.rank, tag, copies))
        for receipt in list(self._receipts[to]):
            if receipt.takes(member.rank, tag):
                self._deliver(to, receipt)
                return

    def receive(
        self, member: GroupRank, sender: int | None, tag: int, tensors: Sequence[torch.Tensor]
    ) -> _Receipt:
        who = "any rank" if sender is None else f"rank {sender}"
        pending = Pending(f"recv from {who} of group {member.group!r}, tag {tag}")
        receipt = _Receipt(sender, tag, list(tensors), pending)
        self._receipts[member].append(receipt)
        self._deliver(member, receipt)
        return receipt

    def _deliver(self, member: GroupRank, receipt: _Receipt) -> None:
        for letter in self._mail[member]:
            sender, tag, sent = letter
            if receipt.takes(sender, tag):
                self._mail[member].remove(letter)
                self._receipts[member].remove(receipt)
                self._do(_copy_all, [receipt.into, sent])
                receipt.came_from = sender
                receipt.pending.is_done = True
                return

    def _do(self, do: Do, given: Sequence[Any]) -> None:
        self._hands.submit(_without_gradients, do, given).result()


def _named(what: str, member: GroupRank, number: int) -> str:
    return f"{what}, collective {number} of group {member.group!r}"


def _one_thread() -> None:
    torch.set_num_threads(1)


@torch.no_grad()
def _without_gradients(do: Do, given: Sequence[Any]) -> None:
    do(given)


def _copy_all(into_and_sent: Sequence[Sequence[torch.Tensor]]) -> None:
    for target, source in zip(*into_and_sent, strict=True):
        target.detach().copy_(source.view(target.shape))
