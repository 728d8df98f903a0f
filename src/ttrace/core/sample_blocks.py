"""Blocks of samples: how calls of a module are cut, so that each block has scales of its own.

    SampleBlocks(module="layers.0.wq", dim=0, blocks=((Run(0, 2),), (Run(2, 2),)))

Values only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from ttrace.core.layout import Runs
from ttrace.core.limits import RANKS, AtMost, Dim, Label, Rank, Size


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleBlocks:
    """Of the calls that one rank makes in one microbatch: local indices along `dim` of its input.

    No index is in two blocks, and each is in one.
    """

    module: Label
    rank: Rank = 0
    microbatch: Size = 0
    dim: Dim
    blocks: Annotated[tuple[Runs, ...], AtMost(RANKS)]

    @property
    def length(self) -> int:
        """Of the dim that is cut."""
        return sum(run.length for runs in self.blocks for run in runs)
