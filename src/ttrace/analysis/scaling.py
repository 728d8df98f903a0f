"""By what a run's gradients are larger than the reference's: how its loss was divided."""

from __future__ import annotations

from ttrace.analysis.align import Aligned
from ttrace.analysis.batch import splits_of
from ttrace.analysis.compare import Comparator, LossScale, find_isolated_scale, find_loss_scale
from ttrace.analysis.sources import Source
from ttrace.core.scale import Scales, declared_scale


def loss_scale(
    reference: Source, candidate: Source, aligned: Aligned, isolated: Scales | None = None
) -> LossScale:
    """By what the candidate's gradients are larger, before they are reduced."""
    comparator, pairs = Comparator(reference.spans, candidate.spans), aligned.pairs()
    if isolated is not None:
        return find_isolated_scale(comparator, pairs, isolated)
    return find_loss_scale(
        comparator,
        pairs,
        reference_splits=splits_of(aligned.reference_batches),
        candidate_splits=splits_of(aligned.candidate_batches),
        declared=declared_scale(reference.trace.loss_parts, candidate.trace.loss_parts),
    )
