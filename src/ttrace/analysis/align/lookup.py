"""Finds rows of one run among the rows of another, by content.

Enters: the rows of the model's input that each microbatch of each rank held. Leaves: the samples
they are, as runs in the batch; for rows that are only parts of samples, the positions too.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

import torch

from ttrace.analysis.batch import Rows, digest
from ttrace.core.layout import Run, Runs, normalise

_Shard = TypeVar("_Shard", bound=Hashable)
_Table = dict[str, list[int]]  # digest of a chunk -> its places in a sample

# Context parallelism gives a rank one chunk of the sequence, or two for an equal share of causal
# attention (zigzag).
_CHUNKS_OF_A_RANK = (1, 2)
# chosen: rows of padding hold the same chunk many times; a few readings of each are enough
_READINGS = 8


def find_rows(
    rows: Mapping[_Shard, Rows], keys: Mapping[_Shard, object], samples: Iterable[str]
) -> dict[_Shard, Runs] | None:
    """Whole rows among digests of samples; shards of one key hold the same. None: not found."""
    where: dict[str, list[int]] = defaultdict(list)
    for index, sample in enumerate(samples):
        where[sample].append(index)
    found: dict[_Shard, Runs] = {}
    placed: dict[object, Runs] = {}
    used: dict[str, int] = defaultdict(int)
    for shard, held in rows.items():
        if keys[shard] not in placed:
            runs = []
            for row in map(digest, held):
                if row not in where:
                    return None
                # Equal rows stand several times in the batch: take them in order, then again.
                places = where[row]
                runs.append(Run(places[used[row] % len(places)], 1))
                used[row] += 1
            placed[keys[shard]] = normalise(runs)
        found[shard] = placed[keys[shard]]
    return found


def find_chunks(
    rows: Mapping[_Shard, Rows], keys: Mapping[_Shard, object], samples: Rows
) -> dict[_Shard, tuple[Runs, Runs]] | None:
    """Parts of rows: the samples and the positions of every shard. None: not found."""
    for count in _CHUNKS_OF_A_RANK:
        found: dict[_Shard, tuple[Runs, Runs]] = {}
        placed: dict[object, tuple[Runs, Runs]] = {}
        used: dict[tuple[Runs, str], int] = defaultdict(int)
        tables: dict[int, list[_Table]] = {}
        for shard, held in rows.items():
            # Ranks of one data-parallel index hold other positions.
            key = (keys[shard], tuple(map(digest, held)))
            if key not in placed:
                part = _part(held, samples, count, used, tables)
                if part is None:
                    break
                placed[key] = part
            found[shard] = placed[key]
        else:
            return found
    return None


def find_blocks(
    rows: Mapping[_Shard, Rows], keys: Mapping[_Shard, object], samples: Sequence[str]
) -> dict[_Shard, Runs] | None:
    """Rows in runs of neighbours, the longest first: tokens, of which many are equal."""
    where: dict[str, list[int]] = defaultdict(list)
    for index, sample in enumerate(samples):
        where[sample].append(index)
    found: dict[_Shard, Runs] = {}
    placed: dict[object, Runs] = {}
    free = [True] * len(samples)
    for shard, held in rows.items():
        if keys[shard] not in placed:
            runs = _blocks([digest(row) for row in held], samples, where, free)
            if runs is None:
                return None
            placed[keys[shard]] = normalise(runs)
        found[shard] = placed[keys[shard]]
    return found


def _blocks(
    wanted: Sequence[str], samples: Sequence[str], where: Mapping[str, list[int]], free: list[bool]
) -> list[Run] | None:
    runs: list[Run] = []
    start = 0
    while start < len(wanted):
        places = [place for place in where.get(wanted[start], []) if free[place]]
        lengths = {place: _common(wanted, start, samples, place, free) for place in places}
        place = max(lengths, key=lambda at: (lengths[at], -at), default=None)
        # A run of one among many equal rows says nothing.
        if place is None or (lengths[place] == 1 and len(where[wanted[start]]) > 1):
            return None
        runs.append(Run(place, lengths[place]))
        free[place : place + lengths[place]] = [False] * lengths[place]
        start += lengths[place]
    return runs


def _common(
    wanted: Sequence[str], start: int, samples: Sequence[str], place: int, free: Sequence[bool]
) -> int:
    """How many rows are equal from here on."""
    length = 0
    for one, other, is_free in zip(wanted[start:], samples[place:], free[place:], strict=False):
        if one != other or not is_free:
            break
        length += 1
    return length


def find_padded(
    rows: Mapping[_Shard, Rows], keys: Mapping[_Shard, object], samples: Rows
) -> dict[_Shard, tuple[Runs, Run]] | None:
    """Rows that are padded less than the samples: which they are, and where in them they lie."""
    for at_end in (True, False):
        found: dict[_Shard, tuple[Runs, Run]] = {}
        placed: dict[object, tuple[Runs, Run]] = {}
        used: dict[str, int] = defaultdict(int)
        for shard, held in rows.items():
            if keys[shard] not in placed:
                part = _padded(held, samples, used, at_end=at_end)
                if part is None:
                    break
                placed[keys[shard]] = part
            found[shard] = placed[keys[shard]]
        else:
            return found if _is_padding(found.values(), samples) else None
    return None


def _is_padding(found: Iterable[tuple[Runs, Run]], samples: Rows) -> bool:
    """Whether all that is left out is one value, and more than the last token of each sample.

    A run that pads to its longest sample holds all of that one; a last token that is the same
    everywhere, and cut off everywhere, is no padding.
    """
    whole = len(samples[0])
    left_out: set[str] = set()
    fewest = whole
    for runs, span in found:
        fewest = min(fewest, whole - span.length)
        outside = [i for i in range(whole) if i not in span.indices]
        for index in (i for run in runs for i in run.indices):
            left_out |= {digest(samples[index][position]) for position in outside[:1]}
    return len(left_out) == 1 and fewest != 1


def _padded(
    held: Rows, samples: Rows, used: dict[str, int], *, at_end: bool
) -> tuple[Runs, Run] | None:
    whole = len(samples[0])
    length = len(held[0]) if len(held) and held[0].ndim else 0
    if not 0 < length <= whole:
        return None
    span = Run(0 if at_end else whole - length, length)
    inside = slice(span.start, whole if span.start else length)
    outside = slice(length, whole) if at_end else slice(0, whole - length)
    where: dict[str, list[int]] = defaultdict(list)
    for index, sample in enumerate(samples):
        if bool((sample[outside] == sample[outside][:1]).all()):  # padding is one value
            where[digest(sample[inside])].append(index)
    runs = []
    for row in map(digest, held):
        if row not in where:
            return None
        places = where[row]
        runs.append(Run(places[used[row] % len(places)], 1))
        used[row] += 1
    return normalise(runs), span


def _part(
    held: Rows,
    samples: Rows,
    count: int,
    used: dict[tuple[Runs, str], int],
    tables: dict[int, list[_Table]],
) -> tuple[Runs, Runs] | None:
    length = len(held[0]) if len(held) and held[0].ndim else 0
    whole = len(samples[0])
    if not 0 < length < whole or whole % length or length % count:
        return None
    size = length // count
    table = tables.setdefault(size, [_table(sample, size) for sample in samples])
    options = [set(_readings(row, table, size)) for row in held]
    common = set.intersection(*({places for _, places in option} for option in options))
    if not common:
        return None
    places = min(common)
    positions = normalise(Run(place * size, size) for place in places)
    runs = []
    for row, option in zip(held, options, strict=True):
        fitting = sorted(sample for sample, at in option if at == places)
        same = (positions, digest(row))
        runs.append(Run(fitting[used[same] % len(fitting)], 1))
        used[same] += 1
    return normalise(runs), positions


def _readings(
    row: torch.Tensor, tables: Sequence[_Table], size: int
) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Every sample, and every order of its chunks, that gives this row."""
    wanted = [digest(chunk) for chunk in row.split(size)]
    for sample, places in enumerate(tables):
        orders = itertools.product(*(places.get(chunk, []) for chunk in wanted))
        for order in itertools.islice(orders, _READINGS):
            yield sample, order


def _table(sample: torch.Tensor, size: int) -> _Table:
    table: _Table = defaultdict(list)
    for place, chunk in enumerate(sample.split(size)):
        table[digest(chunk)].append(place)
    return table
