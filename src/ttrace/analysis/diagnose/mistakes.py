"""What kind of mistake a suspect looks like, found only where undoing it makes the tensor right.

    each rank holds a part and their sum equals the reference: an all-reduce is missing
    2 times the reference, and 2 is the size of dp: a sum where a mean is due
    parts 0 and 1 of 2 of dim 1 are exchanged

Enters: both tensors whole, and what is known of ranks. Leaves: a diagnosis, where one fits. Every
guess is held to the tensor's own tolerance, and must explain nearly all of the error. A package can
add guesses of its own: functions of a suspect under the entry points `ttrace.mistakes`, which yield
diagnoses that bring their sentence with them. They come after those of this file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from importlib.metadata import entry_points

import torch
from torch import Tensor

from ttrace.analysis.diagnose.suspect import Suspect
from ttrace.core.blame import Diagnosis, Mistake, PartFactor
from ttrace.trace.dtypes import dtype_name

Guess = Callable[[Suspect], Iterator[Diagnosis]]

ENTRY_POINTS = "ttrace.mistakes"

_MOST_PARTS = 64  # chosen: every part is compared with every other
_FEWEST = 16  # chosen: below so many elements for each fitted number anything fits
# Coarsest first: values of one are values of those after it, but for the range.
_LOWER = (torch.float8_e5m2, torch.float8_e4m3fn, torch.bfloat16, torch.float16)


def diagnose(suspect: Suspect) -> Diagnosis | None:
    """The first guess that fits, the most telling first."""
    whole = suspect.expected.numel() > 0
    if not whole or not bool(suspect.found.isfinite().all()) or suspect.error == 0:
        return None
    guesses = (*_GUESSES, *installed_guesses())
    return next((diagnosis for guess in guesses for diagnosis in guess(suspect)), None)


@cache
def installed_guesses() -> tuple[Guess, ...]:
    """Those of other packages, by name."""
    found = sorted(entry_points(group=ENTRY_POINTS), key=lambda point: point.name)
    return tuple(point.load() for point in found)


def _zero(suspect: Suspect) -> Iterator[Diagnosis]:
    if not bool(suspect.found.any()):
        yield Diagnosis(mistake=Mistake.ALL_ZERO)


def _stale(suspect: Suspect) -> Iterator[Diagnosis]:
    if suspect.before is not None and torch.equal(suspect.before, suspect.found):
        yield Diagnosis(mistake=Mistake.NOT_UPDATED)


def _unreduced(suspect: Suspect) -> Iterator[Diagnosis]:
    """Each part may be held by several ranks; of a few numbers, only the plain sum and mean count.

    Four norms of about the same size are added up to twice that of the whole, by chance.
    """
    if suspect.total is None:
        return
    is_few = suspect.expected.numel() < _FEWEST
    for times in (1, suspect.holders) if is_few else range(1, suspect.holders + 1):
        if suspect.holders % times or not suspect.fits(suspect.total / times):
            continue
        is_mean = times == suspect.holders
        yield Diagnosis(mistake=Mistake.MISSING_AVERAGE if is_mean else Mistake.MISSING_ALL_REDUCE)


def _exchanged(suspect: Suspect) -> Iterator[Diagnosis]:
    for dim, size in enumerate(suspect.expected.shape):
        cut = suspect.cuts[dim] if suspect.cuts else 1
        # Fused weights (gate and up; query, key and value) are cut in twos and threes once more.
        counts = {cut, 2 * cut, 3 * cut} if cut > 1 else set(suspect.sizes.values())
        for count in sorted(counts):
            if not 1 < count <= min(_MOST_PARTS, size) or size % count:
                continue
            expected, found = (
                values.movedim(dim, 0).reshape(count, -1)
                for values in (suspect.expected, suspect.found)
            )
            order = _order(expected, found)
            if order and suspect.fits(found, expected[torch.tensor(order)]):
                moved = sum(place != source for place, source in enumerate(order))
                yield Diagnosis(
                    mistake=Mistake.PARTS_EXCHANGED if moved == 2 else Mistake.PARTS_IN_OTHER_ORDER,
                    dims=(dim,),
                    order=tuple(order),
                )


def _order(expected: Tensor, found: Tensor) -> list[int]:
    """Which part of the reference each part is nearest to; empty where that is no new order."""
    distances = torch.stack([(expected - part).square().sum(1) for part in found])
    order: list[int] = distances.argmin(1).tolist()
    is_new = len(set(order)) == len(order) and order != sorted(order)
    return order if is_new else []


def _transposed(suspect: Suspect) -> Iterator[Diagnosis]:
    shape = suspect.expected.shape
    for first in range(len(shape)):
        for second in range(first + 1, len(shape)):
            same = shape[first] == shape[second] > 1
            if same and suspect.fits(suspect.found.transpose(first, second)):
                yield Diagnosis(mistake=Mistake.TRANSPOSED, dims=(first, second))


def _shifted(suspect: Suspect) -> Iterator[Diagnosis]:
    for dim, size in enumerate(suspect.expected.shape):
        if size < 3:
            continue
        for first, last, mistake in (
            (1, 0, Mistake.ONE_PLACE_LATER),
            (0, 1, Mistake.ONE_PLACE_EARLIER),
        ):
            found = suspect.found.narrow(dim, first, size - 1)
            expected = suspect.expected.narrow(dim, last, size - 1)
            if suspect.fits(found, expected):
                yield Diagnosis(mistake=mistake, dims=(dim,))


def _by_a_size(suspect: Suspect) -> Iterator[Diagnosis]:
    if suspect.total is not None:
        return  # ranks disagree, which no factor makes them do
    if suspect.fits(-suspect.found):
        yield Diagnosis(mistake=Mistake.OPPOSITE_SIGN)
    for size in sorted({size for size in suspect.sizes.values() if size > 1}):
        sizes = tuple(name for name, known in suspect.sizes.items() if known == size)
        if suspect.fits(suspect.found / size):
            yield Diagnosis(mistake=Mistake.SUM_FOR_MEAN, size=size, sizes=sizes)
        if suspect.fits(suspect.found * size):
            yield Diagnosis(mistake=Mistake.DIVIDED_TOO_OFTEN, size=size, sizes=sizes)


def _by_parts(suspect: Suspect) -> Iterator[Diagnosis]:
    if len(suspect.parts) < 2:
        return
    undone, factors = suspect.found.clone(), []
    for ranks, places in suspect.parts.items():
        expected = torch.cat([suspect.expected[place].flatten() for place in places])
        found = torch.cat([suspect.found[place].flatten() for place in places])
        square = float(expected.square().sum())
        factor = float(expected @ found) / square if square else 1.0
        if len(expected) < _FEWEST or factor == 0:
            return
        factors.append(PartFactor(ranks=ranks, factor=factor))
        for place in places:
            undone[place] /= factor
    is_common = suspect.fits(suspect.found / factors[0].factor)
    if suspect.fits(undone) and not is_common:
        yield Diagnosis(mistake=Mistake.FACTOR_OF_EACH_PART, factors=tuple(factors))


def _same_in_every_row(suspect: Suspect) -> Iterator[Diagnosis]:
    if suspect.expected.dim() < 2:
        return
    width = suspect.expected.shape[-1]
    error = (suspect.found - suspect.expected).reshape(-1, width)
    if len(error) >= _FEWEST and suspect.fits(error - error.mean(0), torch.zeros_like(error)):
        yield Diagnosis(mistake=Mistake.SAME_VECTOR_IN_EVERY_ROW)


def _rounded(suspect: Suspect) -> Iterator[Diagnosis]:
    """Exact: every value is one of the lower precision, which the reference's are not.

    bfloat16 has the lower precision beside float16, though small values of it leave its range.
    """
    own = max((_eps(dtype) for dtype in _LOWER if _is_in(suspect.expected, dtype)), default=0.0)
    for dtype in _LOWER:
        if _eps(dtype) > own and _is_in(suspect.found, dtype):
            yield Diagnosis(mistake=Mistake.ROUNDED_LOWER, dtype=dtype_name(dtype))


def _eps(dtype: torch.dtype) -> float:
    return float(torch.finfo(dtype).eps)


def _is_in(values: Tensor, dtype: torch.dtype) -> bool:
    return torch.equal(values.float().to(dtype).double(), values)


_GUESSES: tuple[Guess, ...] = (
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
