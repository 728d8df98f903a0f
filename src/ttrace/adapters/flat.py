"""Ranges of a flattened parameter, as ranks hold that share one out: the boxes that they are.

Enters: the shape of a parameter, and the first and last element of a range. Leaves: layouts, in the
order of the elements.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch

from ttrace.core.layout import Layout, Run

FlatBox = tuple[tuple[int, int], ...]  # start and stop of every dim


def flat_parts(
    values: torch.Tensor, base: Layout, shape: Sequence[int], start: int, stop: int
) -> Iterator[tuple[torch.Tensor, Layout]]:
    """The values of a range, cut into boxes that each have a layout; all share their memory."""
    at = 0
    for box in flat_boxes(shape, start, stop):
        layout = box_layout(base, box)
        size = math.prod(stop - start for start, stop in box)
        yield values[at : at + size].reshape(layout.local_shape), layout
        at += size


def flat_boxes(shape: Sequence[int], start: int, stop: int) -> Iterator[FlatBox]:
    """A range of the flattened tensor as boxes, in order."""
    if start >= stop:
        return
    if len(shape) <= 1:
        yield ((start, stop),) if shape else ()
        return
    row = math.prod(shape[1:])
    first, last = -(-start // row), stop // row
    if first > last:  # inside one row
        inside = flat_boxes(shape[1:], start - last * row, stop - last * row)
        yield from (((last, last + 1), *box) for box in inside)
        return
    head = flat_boxes(shape[1:], row - (first * row - start), row) if start < first * row else ()
    yield from (((first - 1, first), *box) for box in head)
    if first < last:
        yield ((first, last), *((0, size) for size in shape[1:]))
    yield from (((last, last + 1), *box) for box in flat_boxes(shape[1:], 0, stop - last * row))


def box_layout(base: Layout, box: FlatBox) -> Layout:
    for dim, (start, stop) in enumerate(box):
        base = base.take(dim, [Run(start, stop - start)])
    return base
