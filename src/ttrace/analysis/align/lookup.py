"""Finds rows of one run among the rows of another, by content.

Enters: the rows of the model's input that each microbatch of each rank held. Leaves: the samples
they are, as runs in the batch; for rows that are only parts of samples, the positions too.
"""

from __future__ import annotations

import functools
import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

import torch

from ttrace.analysis.batch import Rows, digest
from ttrace.core.layout import Run, Runs, normalise

_Shard = TypeVar("_Shard", bound=Hashable)
_Place = TypeVar("_Place")
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
    where = _places_of(samples)
    used: Counter[str] = Counter()
    return _place_each(rows, keys, lambda held: _taken_in_turn(held, where, used))


def _places_of(samples: Iterable[str]) -> dict[str, list[int]]:
    where: dict[str, list[int]] = defaultdict(list)
    for index, sample in enumerate(samples):
        where[sample].append(index)
    return where


def _place_each(
    rows: Mapping[_Shard, Rows],
    keys: Mapping[_Shard, object],
    place: Callable[[Rows], _Place | None],
) -> dict[_Shard, _Place] | None:
    """The place of every shard, looked for once for each key; None where one has none."""
    found: dict[_Shard, _Place] = {}
    placed: dict[object, _Place] = {}
    for shard, held in rows.items():
        key = keys[shard]
        if key not in placed:
            at = place(held)
            if at is None:
                return None
            placed[key] = at
        found[shard] = placed[key]
    return found


def _taken_in_turn(held: Rows, where: Mapping[str, list[int]], used: Counter[str]) -> Runs | None:
    """Equal rows stand several times in the batch: they are taken in order, then again."""
    runs = []
    for row in map(digest, held):
        if row not in where:
            return None
        runs.append(Run(where[row][used[row] % len(where[row])], 1))
        used[row] += 1
    return normalise(runs)


def find_chunks(
    rows: Mapping[_Shard, Rows], keys: Mapping[_Shard, object], samples: Rows
) -> dict[_Shard, tuple[Runs, Runs]] | None:
    """Parts of rows: the samples and the positions of every shard. None: not found."""
    # Ranks of one data-parallel index hold other positions.
    own = {shard: (keys[shard], tuple(map(digest, held))) for shard, held in rows.items()}
    for count in _CHUNKS_OF_A_RANK:
        part = functools.partial(_part, samples=samples, count=count, used=Counter(), tables={})
        found = _place_each(rows, own, part)
        if found is not None:
            return found
    return None


def find_blocks(
    rows: Mapping[_Shard, Rows], keys: Mapping[_Shard, object], samples: Sequence[str]
) -> dict[_Shard, Runs] | None:
    """Rows in runs of neighbours, the longest first: tokens, of which many are equal."""
    where, free = _places_of(samples), [True] * len(samples)
    return _place_each(rows, keys, lambda held: _blocks(held, samples, where, free))


def _blocks(
    held: Rows, samples: Sequence[str], where: Mapping[str, list[int]], free: list[bool]
) -> Runs | None:
    wanted = [digest(row) for row in held]
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
    return normalise(runs)


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
        padded = functools.partial(_padded, samples=samples, used=Counter(), at_end=at_end)
        found = _place_each(rows, keys, padded)
        if found is not None:
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
    held: Rows, samples: Rows, used: Counter[str], *, at_end: bool
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
    runs = _taken_in_turn(held, where, used)
    return None if runs is None else (runs, span)


def _part(
    held: Rows,
    samples: Rows,
    count: int,
    used: Counter[tuple[Runs, str]],
    tables: dict[int, list[_Table]],
) -> tuple[Runs, Runs] | None:
    # Samples 0: p q r s and 1: p q t u, in chunks of one digest; held in 2 chunks (zigzag):
    #     row p s    sample 0 at places (0, 3)
    #     row p u    sample 1 at places (0, 3)
    #     both       places (0, 3) are common: samples 0 and 1, the first and the last quarter
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
