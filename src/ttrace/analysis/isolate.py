"""Isolation: plans for runs in which every module starts from the reference's values.

Isolation in the whole of TTrace: plans are written here and kept by trace/plan.py;
capture/tapping.py and capture/overwrite.py carry them out; check.check_isolated judges what came
of it, and localize/isolated.py names what is itself wrong; lab/experiment.py makes the runs.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ttrace.analysis.align import Aligner
from ttrace.analysis.batch import EMPTY_BATCH, Batch, MicrobatchKey, strand_of
from ttrace.analysis.measuring import loss_scale
from ttrace.analysis.sources import opened
from ttrace.core.enclosure import Enclosure, is_enclosed
from ttrace.core.ids import TensorId, tapped_modules
from ttrace.trace.plan import IsolationPlan, Position, PositionKey, plan_file
from ttrace.trace.store import PathOrUrl


def write_plans(
    reference: PathOrUrl,
    run: PathOrUrl,
    folder: Path,
    *,
    enclosures: Sequence[Enclosure] = (),
    probes: Mapping[TensorId, float] | None = None,
    inside: Collection[str] | None = None,
) -> None:
    """A plan for every rank of `run`, from a reference that was recorded with taps.

    What lies inside an enclosure is not overwritten. `probes` get an error of a relative size.
    `inside`: values are given at the boundaries of the model, of its blocks, and of what is inside
    of these blocks alone, and not at all boundaries.
    """
    with opened(("reference", reference), ("candidate", run)) as (tapped, candidate):
        aligned = Aligner(tapped).align(candidate)
        scale = loss_scale(tapped, candidate, aligned)
    tensors = aligned.references()
    folder.mkdir(parents=True, exist_ok=True)
    paths = [module.path for module in tapped.modules]
    modules = tapped_modules(paths, inside)
    for rank in candidate.trace.ranks:
        plan = IsolationPlan(
            reference=reference.resolve(),
            scales=scale.scales,
            positions={
                PositionKey(id_, microbatch, origin): (
                    _shared_out(
                        position,
                        aligned.candidate_batches.get(strand_of(candidate.trace, id_), EMPTY_BATCH),
                        MicrobatchKey(id_.step, rank, microbatch),
                    )
                    if id_.step in scale.split and id_.kind.is_activation
                    else position
                )
                for (id_, owner, microbatch, origin), position in aligned.positions.items()
                if owner == rank
            },
            tensors=tensors,
            crops=aligned.crops,
            kept=frozenset(id_ for id_ in tensors if is_enclosed(id_, enclosures)),
            probes=probes or {},
            modules=modules,
        )
        plan.write(plan_file(folder, rank))


def _shared_out(position: Position, batch: Batch, key: MicrobatchKey) -> Position:
    """Where ranks with the same samples share out the loss, each has a share of the gradient."""
    peers = batch.peers(key)
    if position.share != (0, 1) or key.rank not in peers:
        return position
    return replace(position, share=(peers.index(key.rank), len(peers)))
