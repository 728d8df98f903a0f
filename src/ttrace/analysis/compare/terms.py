"""Terms: what ranks hold of the same samples is one value, or each holds a term of it.

Ranks that all see the whole batch may each take the loss of some of its rows. Their losses differ
then, and so do all gradients until they are summed. Enters: pairs. Leaves: in which steps that is
so. Which reading of a tensor counts is measured (measure.py).
"""

from __future__ import annotations

from collections.abc import Mapping

from ttrace.analysis.compare.measure import Comparator
from ttrace.core.alignment import Pair
from ttrace.core.ids import Kind, TensorId
from ttrace.core.logical import as_terms

# Chosen: two wrong losses may be wrong in opposite ways; shares of one are nearer by far more.
_NEARER = 0.1


def split_losses(comparator: Comparator, pairs: Mapping[TensorId, Pair]) -> dict[int, int]:
    """Steps whose loss is the sum or the mean of what ranks hold, and of how many."""
    found: dict[int, int] = {}
    for id_, (reference, candidate) in pairs.items():
        terms = as_terms(candidate) if id_.kind is Kind.LOSS and candidate.replicas else None
        if terms is None or len(terms.pieces) != 1:
            continue
        each = [comparator.gain(reference, p) for p in (*candidate.pieces, *candidate.replicas)]
        total = sum(each)
        alone = min(abs(gain - 1) for gain in each)
        together = min(abs(total - 1), abs(total / len(each) - 1))
        if len(set(each)) > 1 and together < _NEARER * alone:
            found[id_.step] = len(each)
    return found
