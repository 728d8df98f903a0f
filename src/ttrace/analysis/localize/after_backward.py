"""Blame after backward: accumulation, reduction, clipping, optimizer and buffers.

Enters: verdicts of one step. Leaves: the stages that are wrong while what they were given is right.
"""

from __future__ import annotations

import math
from collections.abc import Sequence, Set

from ttrace.analysis.localize.findings import (
    Consumers,
    by_module,
    common_factor,
    is_everywhere,
    is_rounded,
    of_kind,
    why,
)
from ttrace.core.ids import MASTER, Kind, TensorId
from ttrace.core.results import Culprit, TensorResult, Verdict


def stages_after_backward(
    results: Sequence[TensorResult], consequences: Set[TensorId]
) -> tuple[Culprit, ...]:
    """Every stage between local gradients and new parameters that is wrong by itself.

    `consequences` are those that an earlier part of the step explains.
    """
    unexplained = [result for result in results if result.id not in consequences]
    wrong = {_owner(result) for result in of_kind(unexplained, Kind.ACCUMULATED_GRAD)[1]}
    reductions = (Kind.REDUCED_GRAD, Kind.MAIN_GRAD)
    reduced = [r for r in unexplained if r.id.kind not in reductions or _owner(r) not in wrong]
    return (
        *_accumulation(unexplained, {}),
        *_reduced_gradients(reduced, {}),
        *_main_gradients(reduced, {}),
        *_clipping(results, {}),
        *(_optimizer_state(unexplained, {}) or _updates(unexplained, {})),
        *_buffers(unexplained, {}),
    )


def _accumulation(results: Sequence[TensorResult], _: Consumers) -> tuple[Culprit, ...]:
    gradients, failed = of_kind(results, Kind.ACCUMULATED_GRAD)
    if not failed:
        return ()
    if not is_everywhere(failed, gradients):
        return by_module(failed, "gradient accumulation", "its local gradient passes, accumulated")
    return (
        Culprit(
            where="gradient accumulation",
            part="main gradient",
            reason=f"local gradients pass, {len(failed)} of {len(gradients)} sums of them that are "
            f"given to the reduction do not: {why(failed[0])}",
            evidence=tuple(result.id for result in failed[:3]),
        ),
    )


def _owner(result: TensorResult) -> tuple[str, str]:
    """The parameter that a gradient belongs to."""
    return result.id.module, result.id.slot


def _reduced_gradients(results: Sequence[TensorResult], _: Consumers) -> tuple[Culprit, ...]:
    """Frameworks that sum over data-parallel ranks first, then over others."""
    return _of_reduction(
        results,
        Kind.REDUCED_GRAD,
        name="gradients reduced over data-parallel ranks",
        passing="its local gradient passes, reduced over data-parallel ranks",
    )


def _main_gradients(results: Sequence[TensorResult], _: Consumers) -> tuple[Culprit, ...]:
    passing = "its local gradient passes, reduced"
    if any(result.id.kind is Kind.REDUCED_GRAD for result in results):
        passing = (
            "reduced over data-parallel ranks it passes, finalised (summed over tensor-parallel "
            "ranks and stages, divided by tokens)"
        )
    return _of_reduction(results, Kind.MAIN_GRAD, name="main gradients", passing=passing)


def _of_reduction(
    results: Sequence[TensorResult], kind: Kind, *, name: str, passing: str
) -> tuple[Culprit, ...]:
    gradients, failed = of_kind(results, kind)
    if not failed:
        return ()
    if not is_everywhere(failed, gradients):
        local = {(r.id.module, r.id.slot) for r in results if r.id.kind is Kind.GRAD}
        seen = [r for r in failed if (r.id.module, r.id.slot) in local]
        unseen = [r for r in failed if (r.id.module, r.id.slot) not in local]
        return (
            *by_module(seen, "gradient reduction", passing),
            *by_module(unseen, "main gradient", "activations and their gradients pass"),
        )
    factor = common_factor(failed)
    conflict = any(result.verdict is Verdict.CONFLICT for result in failed)
    if factor is not None:
        where, reason = (
            "gradient reduction",
            f"all {name} are {factor:.4g} times the reference's",
        )
    elif conflict:
        where, reason = "gradient reduction", f"replicas of the {name} disagree"
    elif all(map(is_rounded, failed)):
        where, reason = "gradient reduction", f"{name} were rounded to a lower precision"
    else:
        where, reason = "gradient accumulation", f"{name} differ without a common factor"
    return (
        Culprit(
            where=where,
            part="main gradient",
            reason=f"{reason} ({len(failed)} of {len(gradients)}) while activation gradients pass",
            evidence=tuple(result.id for result in failed[:3]),
        ),
    )


def _clipping(results: Sequence[TensorResult], _: Consumers) -> tuple[Culprit, ...]:
    norms, failed_norms = of_kind(results, Kind.GRAD_NORM)
    failed_norms = [norm for norm in failed_norms if not _is_norm_of_own(norm, results)]
    clipped, failed = of_kind(results, Kind.CLIPPED_GRAD)
    later = (*of_kind(results, Kind.OPTIMIZER)[1], *of_kind(results, Kind.PARAM_AFTER)[1])
    extra = [r for r in (*norms, *clipped) if r.verdict is Verdict.EXTRA]
    if failed_norms:
        part, reason = (
            "grad norm",
            f"it is not the norm of the main gradients: {why(failed_norms[0])}",
        )
    elif failed:
        part = "clip"
        reason = (
            f"main gradients and their norm pass, {len(failed)} of {len(clipped)} clipped "
            f"gradients do not: {why(failed[0])}"
        )
    elif extra and later:
        part, reason = "clip", "the candidate clips its gradients, the reference does not"
    else:
        return ()
    evidence = tuple(result.id for result in (failed_norms or failed or extra)[:3])
    return (Culprit(where="gradient clipping", part=part, reason=reason, evidence=evidence),)


def _is_norm_of_own(norm: TensorResult, results: Sequence[TensorResult]) -> bool:
    """Whether it may be the norm of the candidate's own gradients, however wrong those are.

    Ranks that disagree about a gradient have no one norm to expect.
    """
    found = of_kind(results, Kind.MAIN_GRAD)[0]
    if any(result.verdict is Verdict.CONFLICT for result in found):
        return True
    if norm.verdict is not Verdict.MISMATCH or norm.statistics is None or norm.tolerance is None:
        return False
    gradients = [result.statistics for result in found]
    ours = math.hypot(*(s.reference_norm for s in gradients if s is not None))
    theirs = math.hypot(*(s.candidate_norm for s in gradients if s is not None))
    margin = norm.tolerance.error_norm
    is_whole_norm = abs(ours - norm.statistics.reference_norm) <= margin
    return is_whole_norm and abs(theirs - norm.statistics.candidate_norm) <= margin


def _optimizer_state(results: Sequence[TensorResult], _: Consumers) -> tuple[Culprit, ...]:
    states, failed = of_kind(results, Kind.OPTIMIZER)
    if not failed:
        return ()
    reason = (
        f"the gradients it was given pass, {len(failed)} of {len(states)} tensors of its state do "
        f"not: {why(failed[0])}"
    )
    if all(result.verdict is Verdict.MISSING for result in failed):
        owners = {(result.id.module, result.id.slot.partition(".")[0]) for result in failed}
        reason = (
            f"it has no state for {len(owners)} parameters that the reference's has: does it step "
            "on the parameters that the model uses?"
        )
    evidence = tuple(result.id for result in failed[:3])
    return (Culprit(where="optimizer step", part="state", reason=reason, evidence=evidence),)


def _updates(results: Sequence[TensorResult], _: Consumers) -> tuple[Culprit, ...]:
    updated, failed = of_kind(results, Kind.PARAM_AFTER)
    if not failed:
        return ()
    reason = "main gradients pass"
    copies = [result for result in updated if result.id.slot.endswith(MASTER)]
    if copies and not any(result.verdict.is_failure for result in copies):
        updated = [result for result in updated if not result.id.slot.endswith(MASTER)]
        reason = "the optimizer's copies in full precision pass"
    if not is_everywhere(failed, updated):
        return by_module(failed, "update", "its main gradient passes")
    return (
        Culprit(
            where="optimizer step",
            part="update",
            reason=f"{reason}, {len(failed)} of {len(updated)} new parameters do not: "
            f"{why(failed[0])}",
            evidence=tuple(result.id for result in failed[:3]),
        ),
    )


def _buffers(results: Sequence[TensorResult], _: Consumers) -> tuple[Culprit, ...]:
    return by_module(of_kind(results, Kind.BUFFER)[1], "buffer", "everything else passes")


# In the order of a step: what an earlier one finds explains what the later ones would.
AFTER_BACKWARD = (
    _accumulation,
    _reduced_gradients,
    _main_gradients,
    _clipping,
    _optimizer_state,
    _updates,
    _buffers,
)
