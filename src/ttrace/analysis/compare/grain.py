"""Grain: tensors that one run computed, stored, reduced or sent in fewer bits than the other.

    main_grad   7 bits of mantissa, 23 in the reference     reduced in bfloat16
    main_grad   7 bits, 23; the local gradient has 7, too   one term, and nothing to add up
    output      23 bits, 3 in the reference                 not quantised to float8_e4m3fn

A float32 that holds a rounded value is as near to the reference as rounding made it, which in
training with bfloat16 is nearer than noise: no distance tells, the bits do (core/formats.py).
Enters: what was measured of all pairs. Leaves: those whose values are of another precision, and
those of which that was asked for or says nothing. docs/decisions/0035 has the reasons.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace

from ttrace.analysis.compare.measured import Measured
from ttrace.core.formats import Format, Precision, coarsest, format_of
from ttrace.core.ids import Kind, TensorId
from ttrace.core.logical import LogicalTensor, Pair
from ttrace.core.statistics import Statistics

# Chosen: bits that are zero in all witnesses; by chance in one of 2^48 tensors.
_EVIDENCE_BITS = 48
# Chosen: formats of quantised tensors. The sum of two tensors of bfloat16 is rightly finer.
_QUANTISED_BITS = 3
_QUANTISED_VALUES = 16  # chosen: different ones; whole numbers up to 15 have 3 bits, too

_UNREDUCED = (Kind.ACCUMULATED_GRAD, Kind.GRAD)
_REDUCED = (Kind.REDUCED_GRAD, Kind.MAIN_GRAD)
# From which a tensor may have its grain: the first that was recorded counts.
_MADE_OF = {
    Kind.REDUCED_GRAD: _UNREDUCED,
    Kind.MAIN_GRAD: _UNREDUCED,
    Kind.CLIPPED_GRAD: (*_REDUCED[::-1], *_UNREDUCED),
    Kind.OPTIMIZER: (Kind.CLIPPED_GRAD, *_REDUCED[::-1], *_UNREDUCED),
}
# Sums of more or fewer terms than in another layout, each of which is as coarse as it may be.
_OF_TERMS = frozenset({*_UNREDUCED, Kind.GRAD_INPUT, Kind.GRAD_OUTPUT, Kind.GRAD_NORM})
_MANY = 16  # chosen: fewer elements may all be round numbers
_OF_HIDDEN = frozenset({Kind.OUTPUT, Kind.GRAD_INPUT, Kind.GRAD_OUTPUT, Kind.GRAD})


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Names of dtypes that the candidate was told to use (analysis/lost_bits.py)."""

    everywhere: AbstractSet[str] = frozenset()
    in_reduction: AbstractSet[str] = frozenset()

    def explains(self, kind: Kind, found: Format) -> bool:
        is_reduced = kind in (*_REDUCED, Kind.CLIPPED_GRAD)
        return found.name in self.everywhere or (is_reduced and found.name in self.in_reduction)


@dataclass(frozen=True, slots=True, kw_only=True)
class Precisions:
    """Tensors whose precision is not that of the reference: as they should not, and as they may."""

    wrong: Mapping[TensorId, Precision] = field(default_factory=dict)
    allowed: Mapping[TensorId, Precision] = field(default_factory=dict)


def between(found: Statistics) -> Precision | None:
    """What the grains of a pair look like, before witnesses are asked; None where they agree."""
    if found.reference_grain is None or found.candidate_grain is None:
        return None
    sides = coarsest(found.reference_grain), coarsest(found.candidate_grain)
    if sides[0] == sides[1]:
        return None
    return Precision(reference=sides[0], candidate=sides[1])


def precisions(
    pairs: Mapping[TensorId, Pair],
    measured: Mapping[TensorId, Measured],
    noise: Sequence[Mapping[TensorId, Statistics]],
    asked: Asked,
    *,
    isolated: bool,
) -> Precisions:
    """Of all pairs; in an isolated run everything was given values of the reference's precision."""
    judge = _Rules(pairs, measured, asked, isolated=isolated)
    wrong: dict[TensorId, Precision] = {}
    allowed: dict[TensorId, Precision] = {}
    for id_, found in _beyond_doubt(pairs, measured).items():
        if all(_is_finer(run.get(id_), found) for run in noise) and not judge.follows(id_, found):
            target = allowed if judge.allows(id_, found) else wrong
            target[id_] = found
    if not isolated:
        wrong = {id_: found for id_, found in wrong.items() if not _passes_on(id_, allowed)}
    return Precisions(wrong=wrong, allowed=allowed)


def _beyond_doubt(
    pairs: Mapping[TensorId, Pair], measured: Mapping[TensorId, Measured]
) -> dict[TensorId, Precision]:
    """Pairs whose precisions differ by no coincidence.

    Where one of its kind is certain, a small tensor of the same precision is no coincidence.
    """
    # main_grad of step 0, all likely to be bfloat16 and float32 in the reference:
    #     wq, 4096 witnesses    certain
    #     norm, 2 witnesses     as wq: the same step, kind and precision
    #     of step 1, alone, 2 witnesses    left out
    seen = {id_: found for id_, found in measured.items() if found.witnesses}
    likely = dict(_likely(pairs, seen))
    certain = {id_: found for id_, found in likely.items() if _is_certain(id_, found, pairs, seen)}
    kinds = {(id_.step, id_.kind, found.candidate) for id_, found in certain.items()}
    return {
        id_: found
        for id_, found in likely.items()
        if id_ in certain or (found.is_lower and (id_.step, id_.kind, found.candidate) in kinds)
    }


def _likely(
    pairs: Mapping[TensorId, Pair], measured: Mapping[TensorId, Measured]
) -> Iterator[tuple[TensorId, Precision]]:
    """By their grains; where these are not certain, by the dtypes in which values are stored."""
    for id_, found in measured.items():
        precision = between(found.statistics)
        if precision is None:
            continue
        stored = format_of(pairs[id_][1].dtype)
        if precision.is_lower and stored is not None:
            hidden = found.witnesses * (stored.mantissa_bits - precision.candidate.mantissa_bits)
            is_open = stored.mantissa_bits < precision.reference.mantissa_bits
            if is_open and hidden < _EVIDENCE_BITS:
                precision = replace(precision, candidate=stored)
        yield id_, precision


def is_witnessed(precision: Precision, found: Measured) -> bool:
    """Whether values enough show that the coarser side was rounded, and is not coarse by chance."""
    return found.witnesses * precision.apart >= _EVIDENCE_BITS


def source_of(id_: TensorId, known: AbstractSet[TensorId]) -> TensorId | None:
    """What a gradient or a state is made of, where that was recorded."""
    slot = id_.slot.rpartition(".")[0] if id_.kind is Kind.OPTIMIZER else id_.slot
    made_of = (replace(id_, kind=kind, slot=slot) for kind in _MADE_OF.get(id_.kind, ()))
    return next((source for source in made_of if source in known), None)


def _is_certain(
    id_: TensorId,
    found: Precision,
    pairs: Mapping[TensorId, Pair],
    measured: Mapping[TensorId, Measured],
) -> bool:
    reference, candidate = pairs[id_]
    witnesses = measured[id_].witnesses
    if found.is_lower and format_of(candidate.dtype) == found.candidate:
        return True  # its dtype says so
    if not is_witnessed(found, measured[id_]):
        return False
    if found.is_lower:
        return True
    is_quantised = found.reference.mantissa_bits <= _QUANTISED_BITS
    is_whole = not (_is_sum(reference) or _is_sum(candidate))
    is_activation = id_.kind in (Kind.INPUT, Kind.OUTPUT)
    return is_quantised and is_whole and is_activation and witnesses >= _QUANTISED_VALUES


class _Rules:
    """When values of lower precision are no mistake of the place where they are."""

    def __init__(
        self,
        pairs: Mapping[TensorId, Pair],
        measured: Mapping[TensorId, Measured],
        asked: Asked,
        *,
        isolated: bool,
    ) -> None:
        self._pairs, self._measured = pairs, measured
        self._asked, self._isolated = asked, isolated
        self._lowest = _lowest(pairs, measured)

    def follows(self, id_: TensorId, found: Precision) -> bool:
        """Whether what it was made of is as coarse already; nothing is said of terms of a sum."""
        if id_.kind in _UNREDUCED and _is_sum(self._pairs[id_][0]):
            return True
        source = source_of(id_, self._measured.keys())
        if source is None or (self._isolated and id_.kind not in _REDUCED):
            return False
        grain = self._measured[source].statistics.candidate_grain
        return grain is not None and grain <= found.candidate.mantissa_bits

    def allows(self, id_: TensorId, found: Precision) -> bool:
        """Whether it was asked for, or a correct layout may make it so."""
        if not found.is_lower:
            return False
        if self._asked.explains(id_.kind, found.candidate):
            return True
        if self._lowest > found.candidate.mantissa_bits:
            return False  # the reference does nothing in so few bits
        if id_.kind in _OF_TERMS or (id_.kind in _REDUCED and self._is_unseen(id_)):
            return True
        reference, candidate = self._pairs[id_]
        return id_.kind is Kind.INPUT and reference.dtype != candidate.dtype

    def _is_unseen(self, id_: TensorId) -> bool:
        source = source_of(id_, self._measured.keys())
        return source is None or self._measured[source].statistics.candidate_grain is None


def _lowest(pairs: Mapping[TensorId, Pair], measured: Mapping[TensorId, Measured]) -> int:
    """The fewest bits of mantissa in which the reference itself computes: openly, or then cast."""
    formats = (format_of(reference.dtype) for reference, _ in pairs.values())
    bits = [found.mantissa_bits for found in formats if found is not None]
    for id_, found in measured.items():
        grain = found.statistics.reference_grain
        if id_.kind in _OF_HIDDEN and grain is not None and found.statistics.count >= _MANY:
            # Masks and weights that are all 1 use fewer bits than any format has.
            used = coarsest(grain).mantissa_bits
            bits += [used] if grain == used > 1 else []
    return min(bits, default=0)


def _is_finer(noisy: Statistics | None, found: Precision) -> bool:
    """Whether the perturbed reference, too, has values that the coarser format does not hold."""
    if noisy is None or noisy.candidate_grain is None or not found.is_lower:
        return True
    return noisy.candidate_grain > found.candidate.mantissa_bits


def _passes_on(id_: TensorId, allowed: Mapping[TensorId, Precision]) -> bool:
    """Whether it is the output of a call whose input may be of another precision."""
    return id_.kind is Kind.OUTPUT and any(
        other.kind is Kind.INPUT and replace(other, kind=id_.kind, slot=id_.slot) == id_
        for other in allowed
    )


def _is_sum(tensor: LogicalTensor) -> bool:
    return any(len(piece.records) > 1 or piece.factor != 1.0 for piece in tensor.pieces)
