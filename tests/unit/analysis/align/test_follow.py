"""Rows that a model computed for another stand as the data that they were made of."""

from __future__ import annotations

import torch

from ttrace.analysis.align.matching import follow
from ttrace.analysis.batch import Batch, MicrobatchKey, Part, digest
from ttrace.core.layout import Run

REAL, FAKE = torch.arange(8.0).view(4, 2), torch.arange(8.0).view(4, 2) + 100


def base() -> Batch:
    """One rank: four samples of data, then four computed ones."""
    return Batch(
        sizes={0: 8},
        parts={MicrobatchKey(0, 0, mb): Part((Run(4 * mb, 4),)) for mb in range(2)},
        rows={0: tuple(map(digest, (*REAL, *FAKE)))},
    )


def key(rank: int, microbatch: int) -> MicrobatchKey:
    return MicrobatchKey(0, rank, microbatch)


def test_computed_rows_lie_like_the_data_of_another_microbatch() -> None:
    rounded = FAKE + 1e-3
    rows = {key(r, 0): tuple(REAL[r::2]) for r in range(2)}
    rows |= {key(r, 1): tuple(rounded[r::2]) for r in range(2)}
    found = follow(rows, {k: (k.rank, k.microbatch) for k in rows}, base(), ())
    assert found is not None
    assert found[key(1, 0)] == Part((Run(1, 1), Run(3, 1)))
    assert found[key(1, 1)] == Part((Run(5, 1), Run(7, 1)))


def test_nothing_is_told_where_no_data_was_found() -> None:
    rows = {key(r, 0): tuple(REAL[r::2] + 1) for r in range(2)}
    assert follow(rows, {k: k.rank for k in rows}, base(), ()) is None
