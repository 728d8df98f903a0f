"""What kind of mistake a suspect looks like, said only where undoing it makes the tensor right.

    each rank holds a part and their sum equals the reference: an all-reduce is missing
    2 times the reference, and 2 is the size of dp: summed where a mean is due
    parts 0 and 1 of 2 of dim 1 are exchanged

Enters: both tensors whole, and what is known of ranks. Leaves: a sentence, empty where nothing
fits. Every guess is held to the tensor's own tolerance, and must explain nearly all of the error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from ttrace.analysis.diagnose.suspect import Suspect
from ttrace.trace.dtypes import dtype_name

_MOST_PARTS = 64  # chosen: every part is compared with every other
_FEWEST = 16  # chosen: below so many elements for each fitted number anything fits
# Coarsest first: values of one are values of those after it, but for the range.
_LOWER = (torch.float8_e5m2, torch.float8_e4m3fn, torch.bfloat16, torch.float16)


def diagnose(suspect: Suspect) -> str:
    """The first guess that fits, the most telling first."""
    whole = suspect.expected.numel() > 0
    if not whole or not bool(suspect.found.isfinite().all()) or suspect.error == 0:
        return ""
    return next((sentence for guess in _GUESSES for sentence in guess(suspect)), "")


def _zero(suspect: Suspect) -> Iterator[str]:
    if not bool(suspect.found.any()):
        yield "it is all zero: never computed, or never received"


def _stale(suspect: Suspect) -> Iterator[str]:
    if suspect.before is not None and torch.equal(suspect.before, suspect.found):
        yield "it equals its value before the step: it was not updated"


def _unreduced(suspect: Suspect) -> Iterator[str]:
    if suspect.total is None:
        return
    for times in range(1, suspect.holders + 1):
        if suspect.holders % times or not suspect.fits(suspect.total / times):
            continue
        if times == suspect.holders:
            yield "ranks disagree and their mean equals the reference: an average is missing"
        else:
            yield (
                "each rank holds a part and their sum equals the reference: an all-reduce is "
                "missing"
            )


def _exchanged(suspect: Suspect) -> Iterator[str]:
    for dim, size in enumerate(suspect.expected.shape):
        cut = suspect.cuts[dim] if suspect.cuts else 1
        # Fused weights (gate and up; query, key and value) are cut in twos and threes once more.
        counts = {cut, 2 * cut, 3 * cut} if cut > 1 else set(suspect.sizes.values())
        for count in sorted(counts):
            if not 1 < count <= min(_MOST_PARTS, size) or size % count:
                continue
            ours, theirs = (
                values.movedim(dim, 0).reshape(count, -1)
                for values in (suspect.expected, suspect.found)
            )
            order = _order(ours, theirs)
            if order and suspect.fits(theirs, ours[torch.tensor(order)]):
                yield _order_sentence(order, dim)


def _order(ours: Tensor, theirs: Tensor) -> list[int]:
    """Which part of the reference each part is nearest to; empty where that is no new order."""
    distances = torch.stack([(ours - part).square().sum(1) for part in theirs])
    order: list[int] = distances.argmin(1).tolist()
    is_new = len(set(order)) == len(order) and order != sorted(order)
    return order if is_new else []


def _order_sentence(order: Sequence[int], dim: int) -> str:
    moved = [place for place, source in enumerate(order) if place != source]
    if len(moved) == 2:
        return f"parts {moved[0]} and {moved[1]} of {len(order)} of dim {dim} are exchanged"
    shown = ", ".join(map(str, order[:8])) + (" ..." if len(order) > 8 else "")
    return f"the {len(order)} parts of dim {dim} stand in another order: {shown}"


def _transposed(suspect: Suspect) -> Iterator[str]:
    shape = suspect.expected.shape
    for first in range(len(shape)):
        for second in range(first + 1, len(shape)):
            same = shape[first] == shape[second] > 1
            if same and suspect.fits(suspect.found.transpose(first, second)):
                yield f"dims {first} and {second} are exchanged: it is transposed"


def _shifted(suspect: Suspect) -> Iterator[str]:
    for dim, size in enumerate(suspect.expected.shape):
        if size < 3:
            continue
        for step, words in ((1, "later"), (-1, "earlier")):
            first, last = (1, 0) if step == 1 else (0, 1)
            found = suspect.found.narrow(dim, first, size - 1)
            expected = suspect.expected.narrow(dim, last, size - 1)
            if suspect.fits(found, expected):
                yield f"it is the reference one place {words} along dim {dim}"


def _by_a_size(suspect: Suspect) -> Iterator[str]:
    if suspect.fits(-suspect.found):
        yield "its sign is the opposite"
    for size in sorted({size for size in suspect.sizes.values() if size > 1}):
        named = " or ".join(name for name, known in suspect.sizes.items() if known == size)
        if suspect.fits(suspect.found / size):
            yield f"{size} times the reference, and {size} is {named}: a sum where a mean is due"
        if suspect.fits(suspect.found * size):
            yield f"1/{size} of the reference, and {size} is {named}: divided once too often"


def _by_parts(suspect: Suspect) -> Iterator[str]:
    if len(suspect.parts) < 2:
        return
    undone, factors = suspect.found.clone(), {}
    for name, places in suspect.parts.items():
        ours = torch.cat([suspect.expected[place].flatten() for place in places])
        theirs = torch.cat([suspect.found[place].flatten() for place in places])
        square = float(ours.square().sum())
        factor = float(ours @ theirs) / square if square else 1.0
        if len(ours) < _FEWEST or factor == 0:
            return
        factors[name] = factor
        for place in places:
            undone[place] /= factor
    if suspect.fits(undone):
        shown = ", ".join(f"{factor:.4g} on {name}" for name, factor in list(factors.items())[:4])
        yield f"every part is the reference's times a factor of its own: {shown}"


def _same_in_every_row(suspect: Suspect) -> Iterator[str]:
    if suspect.expected.dim() < 2:
        return
    width = suspect.expected.shape[-1]
    error = (suspect.found - suspect.expected).reshape(-1, width)
    if len(error) >= _FEWEST and suspect.fits(error - error.mean(0), torch.zeros_like(error)):
        yield "every row is off by the same vector: a bias is added too often, or not at all"


def _rounded(suspect: Suspect) -> Iterator[str]:
    """Exact: every value is one of the lower precision, which the reference's are not."""
    for dtype in _LOWER:
        if not _is_in(suspect.expected, dtype) and _is_in(suspect.found, dtype):
            name = dtype_name(dtype)
            yield f"every value is one of {name}, the reference's are not: it was rounded to that"


def _is_in(values: Tensor, dtype: torch.dtype) -> bool:
    return torch.equal(values.float().to(dtype).double(), values)


_GUESSES: tuple[Callable[[Suspect], Iterator[str]], ...] = (
    _zero,
    _stale,
    _unreduced,
    _exchanged,
    _transposed,
    _shifted,
    _by_a_size,
    _by_parts,
    _same_in_every_row,
    _rounded,
)
