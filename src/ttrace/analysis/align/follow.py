"""Where rows stand that one model computed for another: as the rows that they were made of.

Enters: the rows of a model of which some are no rows of the other trace, since they are computed
and differ by rounding. Leaves: a part for each. Microbatches of data tell which of their samples a
rank has; the computed rows of as many samples lie in their own microbatch in the same way.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from ttrace.analysis.align.lookup import find_rows
from ttrace.analysis.batch import Batch, MicrobatchKey, Part, Rows
from ttrace.core.layout import Run, normalise

Matched = tuple[Batch, Batch]  # of the reference, and of the candidate in its order
Groups = Mapping[MicrobatchKey, object]


def follow(
    rows: Mapping[MicrobatchKey, Rows], groups: Groups, base: Batch, others: Sequence[Matched]
) -> dict[MicrobatchKey, Part] | None:
    """The parts of the rows of one step; None where neither data nor other models tell them.

    `base` is the reference's batch of the same model, `others` are those of other models.
    """
    parts: dict[MicrobatchKey, Part] = {}
    for microbatch in sorted({key.microbatch for key in rows}):
        mine = {key: held for key, held in rows.items() if key.microbatch == microbatch}
        parts |= _by_content(mine, groups, base)
    for key, held in rows.items():
        if key not in parts:
            known = (*others, (base, replace(base, parts=parts)))
            part = next(_like_others(key, len(held), base, known), None)
            if part is None:
                return None
            parts[key] = part
    return parts


def _by_content(
    rows: Mapping[MicrobatchKey, Rows], groups: Groups, base: Batch
) -> dict[MicrobatchKey, Part]:
    """Of one microbatch."""
    key = next(iter(rows))
    block = _block(base, key)
    samples = base.rows[key.step]
    found = find_rows(rows, groups, [samples[index] for index in block]) or {}
    return {
        key: Part(normalise(Run(block[i], 1) for run in runs for i in run.indices))
        for key, runs in found.items()
    }


def _like_others(
    key: MicrobatchKey, count: int, base: Batch, others: Sequence[Matched]
) -> Iterator[Part]:
    block = _block(base, key)
    for reference, candidate in others:
        for other, part in candidate.parts.items():
            if (other.rank, other.step) != (key.rank, key.step) or part.positions or part.span:
                continue
            data, indices = _block(reference, other), part.indices
            if len(data) == len(block) and len(indices) == count and set(indices) <= set(data):
                yield Part(normalise(Run(block[data.index(i)], 1) for i in indices))


def _block(base: Batch, of: MicrobatchKey) -> list[int]:
    """The samples of one microbatch, of all ranks, in the order of the batch."""
    held = (
        part.indices
        for key, part in base.parts.items()
        if (key.step, key.microbatch) == (of.step, of.microbatch)
    )
    return sorted({index for indices in held for index in indices})
