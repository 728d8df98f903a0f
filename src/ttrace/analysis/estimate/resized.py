"""Records of tensors that have other sizes, or that more ranks split.

Enters: a record, and what becomes of its dims. Leaves: the record as the stated run would have it.
Dims are told by their logical size: every dim of the size 128 becomes one of 8192, say.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction

from ttrace.core.layout import Run, Runs
from ttrace.core.record import Record
from ttrace.errors import UsageError


def asked_sizes(given: list[str]) -> dict[int, int]:
    """`128=8192` as numbers."""
    found: dict[int, int] = {}
    for part in (each.strip() for text in given for each in text.split(",")):
        old, _, new = part.partition("=")
        if not (old.isdecimal() and new.isdecimal() and int(old) and int(new)):
            raise UsageError(f"--size takes OLD=NEW such as 128=8192, found {part!r}")
        found[int(old)] = int(new)
    return found


def resized(
    record: Record, sizes: Mapping[int, int], parts: Mapping[int, Fraction], samples: Fraction
) -> Record:
    """Dims of a size get another one; dim d is split into parts[d] times as many; more samples."""
    old = record.shape if record.layout is None else record.layout.shape
    batch = _batch_dim(record)
    new = tuple(
        math.ceil(sizes.get(size, size) * (samples if dim == batch else 1))
        for dim, size in enumerate(old)
    )
    if old == new and not parts:
        return record
    if record.layout is None:
        shape = (math.ceil(size / parts.get(dim, 1)) for dim, size in enumerate(new))
        return replace(record, shape=tuple(shape))
    runs = (
        _runs(own, Fraction(after, before or 1), parts.get(dim, Fraction(1)), after)
        for dim, (own, before, after) in enumerate(zip(record.layout.runs, old, new, strict=True))
    )
    layout = replace(record.layout, shape=new, runs=tuple(runs))
    return replace(record, shape=layout.local_shape, layout=layout)


def _batch_dim(record: Record) -> int:
    """The dim of samples: the first, where the framework does not say; -1 where there is none."""
    if not (record.id.kind.is_activation or record.id.kind.is_gradient_of_activation):
        return -1
    return 0 if record.batch_dim is None else record.batch_dim


def _runs(runs: Runs, ratio: Fraction, factor: Fraction, size: int) -> Runs:
    """The same runs of a larger dim; what more ranks split becomes shorter where it begins."""
    found = []
    for run in runs:
        length = min(size, math.ceil(run.length * ratio / factor))
        start = None if run.start is None else min(int(run.start * ratio), size - length)
        found.append(Run(start, length))
    return tuple(found)
