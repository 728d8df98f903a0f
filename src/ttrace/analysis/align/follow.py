"""Where rows stand that one model computed for another: as the rows that they were made of.

Enters: the rows of one stream, of which some are no rows of the other trace since they are computed
and differ by rounding. Leaves: a part for each. Microbatches of data tell which of their samples a
rank has; the computed rows of as many samples lie in their own microbatch in the same way.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ttrace.analysis.align.lookup import find_rows
from ttrace.analysis.batch import Batch, MicrobatchKey, Part, Rows, Stream
from ttrace.core.layout import Run, normalise

Parts = dict[MicrobatchKey, Part]


def follow(
    rows: Mapping[MicrobatchKey, Rows],
    groups: Mapping[MicrobatchKey, object],
    base: Batch,
    known: Mapping[MicrobatchKey, Part],
) -> Parts | None:
    """The parts of these rows; None where neither data nor other streams of the step tell them.

    `known` are parts that were found by content, of any stream.
    """
    found: Parts = {}
    microbatches = sorted({key.microbatch for key in rows})
    for microbatch in microbatches:
        mine = {key: held for key, held in rows.items() if key.microbatch == microbatch}
        found |= _by_content(mine, groups, base)
    for key, held in rows.items():
        if key not in found:
            part = next(_like_others(key, len(held), base, {**known, **found}), None)
            if part is None:
                return None
            found[key] = part
    return found


def _by_content(
    rows: Mapping[MicrobatchKey, Rows], groups: Mapping[MicrobatchKey, object], base: Batch
) -> Parts:
    key = next(iter(rows))
    block = _block(base, key.stream, key.microbatch)
    samples = base.rows[key.stream]
    found = find_rows(rows, groups, [samples[index] for index in block]) or {}
    return {
        key: Part(normalise(Run(block[i], 1) for run in runs for i in run.indices))
        for key, runs in found.items()
    }


def _like_others(
    key: MicrobatchKey, count: int, base: Batch, known: Mapping[MicrobatchKey, Part]
) -> Iterator[Part]:
    block = _block(base, key.stream, key.microbatch)
    for other, part in known.items():
        is_near = (other.rank, other.stream.step) == (key.rank, key.stream.step)
        if not is_near or part.positions:
            continue
        data = _block(base, other.stream, other.microbatch)
        indices = [index for run in part.samples for index in run.indices]
        if len(data) == len(block) and len(indices) == count and set(indices) <= set(data):
            yield Part(normalise(Run(block[data.index(i)], 1) for i in indices))


def _block(base: Batch, stream: Stream, microbatch: int) -> list[int]:
    """The samples of one microbatch, of all ranks, in the order of the batch."""
    return sorted(
        {
            index
            for key, part in base.parts.items()
            if key.stream == stream and key.microbatch == microbatch
            for run in part.samples
            for index in run.indices
        }
    )
