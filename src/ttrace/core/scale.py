"""By what may the gradients of a correct run be larger than the reference's, before reduction?

A rank divides its loss by what it knows: its own tokens, its microbatches. The data-parallel
average comes later, so a correct activation gradient is dp times the reference's shard. Only scales
that splitting the batch explains are allowed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

Scales = tuple[float, ...]


def explained_scales(reference_splits: Sequence[int], candidate_splits: Sequence[int]) -> Scales:
    """Into how many parts each run splits the batch, over microbatches, ranks and both."""
    return tuple(
        sorted(
            {
                factor
                for ours in (1, *reference_splits)
                for theirs in (1, *candidate_splits)
                for factor in (theirs / ours, 1 / theirs / ours)
            }
        )
    )


def nearest_scale(gain: float, scales: Scales) -> float:
    """The scale that a measured gain is nearest to, by ratio."""
    return min(scales, key=lambda scale: abs(math.log(scale / abs(gain))))
