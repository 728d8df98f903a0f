"""Isolation: plans for runs in which every module starts from the reference's values."""

from __future__ import annotations

from pathlib import Path

from ttrace.analysis.align import Aligned, align
from ttrace.analysis.compare.compare import Comparator, find_loss_scale
from ttrace.core.logical import LogicalTensor
from ttrace.core.scale import Scales, declared_scale
from ttrace.trace.plan import IsolationPlan, PositionKey, plan_file
from ttrace.trace.reader import Trace
from ttrace.trace.spans import SpanReader


def write_plans(reference: Path, run: Path, folder: Path) -> Scales:
    """A plan for every rank of `run`, from a reference that was recorded with taps.

    Leaves the scales that gradients may have in a run by these plans.
    """
    ours, theirs = Trace.open(reference), Trace.open(run)
    with SpanReader(ours.path) as ours_spans, SpanReader(theirs.path) as theirs_spans:
        aligned = align(ours, theirs, reference_spans=ours_spans, candidate_spans=theirs_spans)
        declared = declared_scale(ours.loss_parts, theirs.loss_parts)
        scales = _scales(aligned, Comparator(ours_spans, theirs_spans), declared)
    tensors = {
        a.id: a.reference
        for a in aligned.tensors
        if a.reference is not None and a.reference.pieces and not a.reference.gaps
    }
    folder.mkdir(parents=True, exist_ok=True)
    for rank in theirs.ranks:
        positions = {
            PositionKey(id_, microbatch, origin): position
            for (id_, owner, microbatch, origin), position in aligned.places.items()
            if owner == rank
        }
        plan = IsolationPlan(
            reference=reference.resolve(),
            scales=scales,
            positions=positions,
            tensors=tensors,
            crops=aligned.crops,
        )
        plan.write(plan_file(folder, rank))
    return scales


def _scales(aligned: Aligned, comparator: Comparator, declared: float | None) -> Scales:
    pairs = [
        (a.id, (a.reference, a.candidate))
        for a in aligned.tensors
        if isinstance(a.reference, LogicalTensor) and isinstance(a.candidate, LogicalTensor)
        if not a.reference.gaps and not a.candidate.gaps
    ]
    return find_loss_scale(
        comparator,
        pairs,
        reference_splits=aligned.reference_batch.splits_of_batch(),
        candidate_splits=aligned.candidate_batch.splits_of_batch(),
        declared=declared,
    ).scales
