"""Isolation: plans for runs in which every module starts from the reference's values.

Isolation in the whole of TTrace: plans are written here and kept by trace/plan.py;
capture/boundary.py and capture/overwrite.py carry them out; check.check_isolated judges what came
of it, and localize/isolated.py names what is itself wrong; lab/experiment.py makes the runs.
"""

from __future__ import annotations

from pathlib import Path

from ttrace.analysis.align import Aligner
from ttrace.analysis.scaling import loss_scale
from ttrace.analysis.sources import opened
from ttrace.core.ids import blocks_of
from ttrace.trace.plan import IsolationPlan, PositionKey, plan_file


def write_plans(reference: Path, run: Path, folder: Path, *, coarse: bool = False) -> None:
    """A plan for every rank of `run`, from a reference that was recorded with taps.

    A `coarse` one gives values at the boundaries of the model and of its blocks alone.
    """
    with opened(("reference", reference), ("candidate", run)) as (tapped, candidate):
        aligned = Aligner(tapped).align(candidate)
        scales = loss_scale(tapped, candidate, aligned).scales
    folder.mkdir(parents=True, exist_ok=True)
    modules = blocks_of(module.path for module in tapped.modules) if coarse else None
    for rank in candidate.trace.ranks:
        plan = IsolationPlan(
            reference=reference.resolve(),
            scales=scales,
            positions={
                PositionKey(id_, microbatch, origin): position
                for (id_, owner, microbatch, origin), position in aligned.positions.items()
                if owner == rank
            },
            tensors=aligned.references(),
            crops=aligned.crops,
            modules=modules,
        )
        plan.write(plan_file(folder, rank))
