"""What ranks ask each other while a run is watched: a process group of its own, with a time limit.

Enters: numbers and bytes of this rank. Leaves: those of all ranks. The group is made beside those
that torch.distributed knows: it changes no number of theirs, nor their order of collectives, and
lives when the script has destroyed them. All ranks must ask the same questions; where one does not,
the others hear of it within the limit, as an exception that ends watching and not the run.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

# Chosen: longer than a rank lags behind inside of one step, and much less than the ten minutes
# after which NCCL gives up a collective that the waiting rank may owe to others.
TIMEOUT = timedelta(seconds=120)


class NotAnswered(Exception):
    """Another rank is gone, or asked something else, or is too late."""


class Exchange:
    """Joining is a collective of all ranks; `number` tells those of one run apart."""

    def __init__(self, number: int) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        store = distributed_c10d._get_default_store()  # noqa: SLF001  (no public way to ask)
        own = distributed_c10d.PrefixStore(f"ttrace/watch/{number}", store)
        try:
            self._group: Any = dist.ProcessGroupGloo(own, self.rank, self.size, TIMEOUT)
        except RuntimeError as error:
            raise NotAnswered("not all ranks came to their first watched step") from error

    def largest(self, values: np.ndarray) -> np.ndarray:
        """The largest of each number over all ranks."""
        told = torch.from_numpy(values.copy())
        how = dist.AllreduceOptions()
        how.reduceOp = dist.ReduceOp.MAX  # type: ignore[assignment]
        self._wait(self._group.allreduce([told], how))
        return told.numpy()

    def all_of(self, data: bytes) -> Sequence[bytes]:
        """What every rank has to say, by rank."""
        sizes = self._gathered(np.array([len(data)], dtype=np.int64))
        longest = max(1, *(int(size[0]) for size in sizes))
        padded = np.frombuffer(data.ljust(longest, b"\0"), dtype=np.uint8)
        told = self._gathered(padded)
        return [t.tobytes()[: int(size[0])] for t, size in zip(told, sizes, strict=True)]

    def leave(self) -> None:
        """The others see it at once when they ask again."""
        self._group = None

    def _gathered(self, values: np.ndarray) -> list[np.ndarray]:
        own = torch.from_numpy(values.copy())
        all_ = [torch.empty_like(own) for _ in range(self.size)]
        self._wait(self._group.allgather([all_], [own]))
        return [each.numpy() for each in all_]

    def _wait(self, work: Any) -> None:
        try:
            work.wait(TIMEOUT)
        except RuntimeError as error:
            raise NotAnswered(
                "another rank ended, or made no such step: ranks made different numbers of steps"
            ) from error
