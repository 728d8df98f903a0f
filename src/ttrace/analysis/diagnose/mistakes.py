"""What kind of mistake a suspect looks like, found only where undoing it makes the tensor right.

    each rank holds a part and their sum equals the reference: an all-reduce is missing
    2 times the reference, and 2 is the size of dp: a sum where a mean is due
    parts 0 and 1 of 2 of dim 1 are exchanged

Enters: both tensors whole, and what is known of ranks. Leaves: a diagnosis, where one fits. Every
guess is held to the tensor's own tolerance, and must explain nearly all of the error; where none
does, the one that explains most of it is told as the nearest. A package can add guesses of its own:
functions of a suspect under the entry points `ttrace.mistakes`, which yield diagnoses that bring
their sentence with them. They come after those of this file.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import cache
from importlib.metadata import entry_points
from typing import NamedTuple

import torch
from torch import Tensor

from ttrace.analysis.diagnose.suspect import Suspect
from ttrace.core.blame import Diagnosis, Mistake, Nearest, PartFactor
from ttrace.core.finding import Finding
from ttrace.core.results import TensorResult
from ttrace.trace.dtypes import dtype_name, eps_of


class Trial(NamedTuple):
    """A mistake, and the error that is left when it is undone."""

    diagnosis: Diagnosis
    left: float = 0.0


Guess = Callable[[Suspect], Iterator[Trial]]
OutsideGuess = Callable[[Suspect], Iterator[Diagnosis]]

ENTRY_POINTS = "ttrace.mistakes"

_MOST_PARTS = 64  # chosen: every part is compared with every other
_FEWEST = 16  # chosen: below so many elements for each fitted number anything fits
_MOSTLY = 0.75  # chosen: of the squared error; by chance a likeness explains a half
_AS_GOOD = 0.1  # chosen: a telling guess is told before one that fits its numbers
_ALIKE = 0.1  # chosen: as far as terms of a sum are alike
_OF_PRECISION = {
    Finding.LOWER_PRECISION: Mistake.ROUNDED_LOWER,
    Finding.COARSER_THAN_TERMS: Mistake.ROUNDED_LOWER,
    Finding.NOT_QUANTISED: Mistake.NOT_QUANTISED,
    Finding.NO_CODES: Mistake.NOT_QUANTISED,
}
# What these say, no error tells: it is that of a step too many, or of nothing at all.
_SAY_ALL = (Finding.UPDATED_ALONE, Finding.UPDATED_BY_SOME, Finding.ROUNDED_ALIKE)
# Coarsest first: values of one are values of those after it, but for the range.
_LOWER = (torch.float8_e5m2, torch.float8_e4m3fn, torch.bfloat16, torch.float16)


def diagnose(suspect: Suspect) -> Diagnosis | None:
    """The first guess that fits, the most telling first."""
    for trial in _trials(suspect):
        if suspect.is_explained(trial.left):
            return trial.diagnosis
    outside = installed_guesses() if _is_readable(suspect) else ()
    return next((diagnosis for guess in outside for diagnosis in guess(suspect)), None)


def of_precision(result: TensorResult) -> Diagnosis | None:
    """What the bits of all values have told already, however large the tensor is."""
    mistake = _OF_PRECISION.get(result.finding) if result.finding is not None else None
    if mistake is None or result.specifics is None:
        return None
    dtypes = result.specifics
    return Diagnosis(mistake=mistake, dtype=dtypes.dtype, reference_dtype=dtypes.reference_dtype)


def is_open(result: TensorResult) -> bool:
    """Whether its finding leaves open what kind of mistake it is."""
    return result.finding not in _SAY_ALL


def nearest(suspect: Suspect) -> Nearest | None:
    """The guess that explains most, where none fits; among few numbers anything comes near."""
    if suspect.expected.numel() < _FEWEST or not _is_readable(suspect):
        return None
    tried = [(1 - (trial.left / suspect.error) ** 2, trial) for trial in _trials(suspect)]
    least = max(_MOSTLY, max((share for share, _ in tried), default=0.0) - _AS_GOOD)
    for share, trial in tried:
        if share > least:
            return Nearest(diagnosis=trial.diagnosis, explained=share)
    return _like_a_term(suspect)


def _trials(suspect: Suspect) -> Iterator[Trial]:
    guesses = _GUESSES if _is_readable(suspect) else ()
    return (trial for guess in guesses for trial in guess(suspect))


def _is_readable(suspect: Suspect) -> bool:
    is_finite = bool(suspect.found.isfinite().all())
    return suspect.expected.numel() > 0 and is_finite and suspect.error > 0


def _like_a_term(suspect: Suspect) -> Nearest | None:
    """One of n terms that are alike: 1/n of the reference, beside it an error of sqrt(1 - 1/n).

    It cannot be undone, as the other terms are not there.
    """
    square = float(suspect.expected.square().sum())
    if not square or _has_empty_slices(suspect):
        return None
    gain = float((suspect.found * suspect.expected).sum()) / square
    relative = suspect.error / math.sqrt(square)
    for size in sorted({suspect.sizes[axis] for axis in suspect.added}):
        is_near = abs(gain * size - 1) < _ALIKE
        if size > 1 and is_near and abs(relative / math.sqrt(1 - 1 / size) - 1) < _ALIKE:
            axes = tuple(axis for axis in suspect.added if suspect.sizes[axis] == size)
            found = Diagnosis(mistake=Mistake.ONE_TERM_OF_A_SUM, size=size, axes=axes)
            return Nearest(diagnosis=found, explained=0.0)
    return None


def _has_empty_slices(suspect: Suspect) -> bool:
    """Whether a slice of it is all zero, which something else has made so."""
    missing = (suspect.found == 0) & (suspect.expected != 0)
    dims = range(missing.dim()) if missing.dim() > 1 else ()
    return any(bool(missing.movedim(dim, 0).flatten(1).all(1).any()) for dim in dims)


@cache
def installed_guesses() -> tuple[OutsideGuess, ...]:
    """Those of other packages, by name."""
    found = sorted(entry_points(group=ENTRY_POINTS), key=lambda point: point.name)
    return tuple(point.load() for point in found)


def _zero(suspect: Suspect) -> Iterator[Trial]:
    if not bool(suspect.found.any()):
        yield Trial(Diagnosis(mistake=Mistake.ALL_ZERO))


def _stale(suspect: Suspect) -> Iterator[Trial]:
    if suspect.before is not None and torch.equal(suspect.before, suspect.found):
        yield Trial(Diagnosis(mistake=Mistake.NOT_UPDATED))


def _unreduced(suspect: Suspect) -> Iterator[Trial]:
    """Each part may be held by several ranks; of a few numbers, only the plain sum and mean count.

    Four norms of about the same size are added up to twice that of the whole, by chance.
    """
    if suspect.total is None:
        return
    is_few = suspect.expected.numel() < _FEWEST
    for times in (1, suspect.holders) if is_few else range(1, suspect.holders + 1):
        if suspect.holders % times:
            continue
        is_mean = times == suspect.holders
        found = Diagnosis(
            mistake=Mistake.MISSING_AVERAGE if is_mean else Mistake.MISSING_ALL_REDUCE,
            axes=suspect.axes,
        )
        yield Trial(found, suspect.left(suspect.total / times))


def _exchanged(suspect: Suspect) -> Iterator[Trial]:
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
            if order:
                moved = sum(place != source for place, source in enumerate(order))
                diagnosis = Diagnosis(
                    mistake=Mistake.PARTS_EXCHANGED if moved == 2 else Mistake.PARTS_IN_OTHER_ORDER,
                    dims=(dim,),
                    order=tuple(order),
                )
                yield Trial(diagnosis, suspect.left(found, expected[torch.tensor(order)]))


def _order(expected: Tensor, found: Tensor) -> list[int]:
    """Which part of the reference each part is nearest to; empty where that is no new order."""
    distances = torch.stack([(expected - part).square().sum(1) for part in found])
    order: list[int] = distances.argmin(1).tolist()
    is_new = len(set(order)) == len(order) and order != sorted(order)
    return order if is_new else []


def _transposed(suspect: Suspect) -> Iterator[Trial]:
    shape = suspect.expected.shape
    for first in range(len(shape)):
        for second in range(first + 1, len(shape)):
            if shape[first] == shape[second] > 1:
                found = Diagnosis(mistake=Mistake.TRANSPOSED, dims=(first, second))
                yield Trial(found, suspect.left(suspect.found.transpose(first, second)))


def _shifted(suspect: Suspect) -> Iterator[Trial]:
    for dim, size in enumerate(suspect.expected.shape):
        if size < 3:
            continue
        for first, last, mistake in (
            (1, 0, Mistake.ONE_PLACE_LATER),
            (0, 1, Mistake.ONE_PLACE_EARLIER),
        ):
            found = suspect.found.narrow(dim, first, size - 1)
            expected = suspect.expected.narrow(dim, last, size - 1)
            yield Trial(Diagnosis(mistake=mistake, dims=(dim,)), suspect.left(found, expected))


def _by_a_size(suspect: Suspect) -> Iterator[Trial]:
    if suspect.total is not None:
        return  # ranks disagree, which no factor makes them do
    yield Trial(Diagnosis(mistake=Mistake.OPPOSITE_SIGN), suspect.left(-suspect.found))
    for size in sorted({size for size in suspect.sizes.values() if size > 1}):
        sizes = tuple(name for name, known in suspect.sizes.items() if known == size)
        for mistake, undone in (
            (Mistake.SUM_FOR_MEAN, suspect.found / size),
            (Mistake.DIVIDED_TOO_OFTEN, suspect.found * size),
        ):
            yield Trial(Diagnosis(mistake=mistake, size=size, sizes=sizes), suspect.left(undone))


def _by_parts(suspect: Suspect) -> Iterator[Trial]:
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
    common = suspect.left(suspect.found / factors[0].factor)
    if not suspect.is_explained(common):
        diagnosis = Diagnosis(mistake=Mistake.FACTOR_OF_EACH_PART, factors=tuple(factors))
        yield Trial(diagnosis, suspect.left(undone))


def _same_in_every_row(suspect: Suspect) -> Iterator[Trial]:
    if suspect.expected.dim() < 2:
        return
    width = suspect.expected.shape[-1]
    error = (suspect.found - suspect.expected).reshape(-1, width)
    if len(error) >= _FEWEST:
        left = suspect.left(error - error.mean(0), torch.zeros_like(error))
        yield Trial(Diagnosis(mistake=Mistake.SAME_VECTOR_IN_EVERY_ROW), left)


def _rounded(suspect: Suspect) -> Iterator[Trial]:
    """Exact: every value is one of the lower precision, which the reference's are not.

    bfloat16 has the lower precision beside float16, though small values of it leave its range.
    """
    own = max((eps_of(dtype) for dtype in _LOWER if _is_in(suspect.expected, dtype)), default=0.0)
    for dtype in _LOWER:
        if eps_of(dtype) > own and _is_in(suspect.found, dtype):
            yield Trial(Diagnosis(mistake=Mistake.ROUNDED_LOWER, dtype=dtype_name(dtype)))


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
