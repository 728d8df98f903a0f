"""Blame after backward: accumulation, reduction, clipping, optimizer and buffers.

Enters: verdicts of one step. Leaves: the stages that are wrong while what they were given is right.
"""

from __future__ import annotations

import math
from collections.abc import Sequence, Set
from dataclasses import replace

from ttrace.analysis.localize.findings import (
    blame_together,
    by_module,
    common_factor,
    is_everywhere,
    is_left_out,
    is_rounded,
    of_kind,
)
from ttrace.core.blame import Blame, Culprit, Phase, Reason, Stage
from ttrace.core.finding import Finding
from ttrace.core.ids import MASTER, Kind, TensorId
from ttrace.core.results import TensorResult, Verdict


def stages_after_backward(
    results: Sequence[TensorResult], consequences: Set[TensorId]
) -> tuple[Culprit, ...]:
    """Every stage between local gradients and new parameters that is a root cause.

    `consequences` are those that an earlier part of the step explains.
    """
    unexplained = [result for result in results if result.id not in consequences]
    wrong = {_owner(result) for result in of_kind(unexplained, Kind.ACCUMULATED_GRAD)[1]}
    reductions = (Kind.REDUCED_GRAD, Kind.MAIN_GRAD)
    reduced = [r for r in unexplained if r.id.kind not in reductions or _owner(r) not in wrong]
    return (
        *_accumulation(unexplained),
        *_reduced_gradients(reduced),
        *_main_gradients(reduced),
        *_clipping(results),
        *_optimizer(unexplained),
        *_buffers(unexplained),
    )


def _accumulation(results: Sequence[TensorResult]) -> tuple[Culprit, ...]:
    gradients, failed = of_kind(results, Kind.ACCUMULATED_GRAD)
    if not failed:
        return ()
    if not is_everywhere(failed, gradients):
        return by_module(failed, Phase.GRADIENT_ACCUMULATION, Reason.ACCUMULATED_GRADIENT)
    blame = Blame.at(Stage.GRADIENT_ACCUMULATION, Phase.MAIN_GRADIENT)
    return (blame_together(blame, Reason.ALL_ACCUMULATED_GRADIENTS, failed, gradients),)


def _owner(result: TensorResult) -> tuple[str, str]:
    """The parameter that a gradient belongs to."""
    return result.id.module, result.id.slot


def _reduced_gradients(results: Sequence[TensorResult]) -> tuple[Culprit, ...]:
    """Frameworks that sum over data-parallel ranks first, then over others."""
    return _of_reduction(results, Kind.REDUCED_GRAD, Reason.DATA_PARALLEL_GRADIENT)


def _main_gradients(results: Sequence[TensorResult]) -> tuple[Culprit, ...]:
    is_second = any(result.id.kind is Kind.REDUCED_GRAD for result in results)
    reason = Reason.FINALISED_GRADIENT if is_second else Reason.REDUCED_GRADIENT
    return _of_reduction(results, Kind.MAIN_GRAD, reason)


def _of_reduction(
    results: Sequence[TensorResult], kind: Kind, reason: Reason
) -> tuple[Culprit, ...]:
    """`reason` is that of a module whose gradient alone is wrong."""
    # Of 10 gradients
    #     2 fail                   their modules; another reason where no local gradient was seen
    #     all are 0.5 times        the reduction: COMMON_FACTOR 0.5
    #     all, replicas disagree   the reduction: REPLICAS_DISAGREE
    #     all, each otherwise      the accumulation: NO_COMMON_FACTOR
    gradients, failed = of_kind(results, kind)
    if not failed:
        return ()
    if not is_everywhere(failed, gradients):
        local = {_owner(result) for result in results if result.id.kind is Kind.GRAD}
        seen = [result for result in failed if _owner(result) in local]
        unseen = [result for result in failed if _owner(result) not in local]
        return (
            *by_module(seen, Phase.GRADIENT_REDUCTION, reason),
            *by_module(unseen, Phase.MAIN_GRADIENT, Reason.UNSEEN_LOCAL_GRADIENT),
        )
    factor = common_factor(failed)
    stage = Stage.GRADIENT_REDUCTION
    if factor is not None:
        reason = Reason.COMMON_FACTOR
    elif any(result.verdict is Verdict.CONFLICT for result in failed):
        reason = Reason.REPLICAS_DISAGREE
    elif all(map(is_rounded, failed)):
        reason = Reason.ROUNDED_LOWER
    else:
        stage, reason = Stage.GRADIENT_ACCUMULATION, Reason.NO_COMMON_FACTOR
    blame = Blame.at(stage, Phase.MAIN_GRADIENT)
    return (replace(blame_together(blame, reason, failed, gradients), factor=factor),)


def _clipping(results: Sequence[TensorResult]) -> tuple[Culprit, ...]:
    norms, failed_norms = of_kind(results, Kind.GRAD_NORM)
    failed_norms = [norm for norm in failed_norms if not _is_norm_of_own(norm, results)]
    clipped, failed = of_kind(results, Kind.CLIPPED_GRAD)
    later = (*of_kind(results, Kind.OPTIMIZER)[1], *of_kind(results, Kind.PARAM_AFTER)[1])
    extra = [r for r in (*norms, *clipped) if r.verdict is Verdict.EXTRA]
    clip = Blame.at(Stage.GRADIENT_CLIPPING, Phase.CLIP)
    if failed_norms:
        blame = replace(clip, phase=Phase.GRADIENT_NORM)
        return (blame_together(blame, Reason.NOT_THE_NORM, failed_norms, norms),)
    if failed:
        return (blame_together(clip, Reason.CLIPPED_GRADIENTS, failed, clipped),)
    if extra and later:
        return (blame_together(clip, Reason.CLIPS_ALONE, extra, (*norms, *clipped)),)
    return ()


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
    expected = math.hypot(*(s.reference_norm for s in gradients if s is not None))
    own = math.hypot(*(s.candidate_norm for s in gradients if s is not None))
    margin = norm.tolerance.error_norm
    is_whole_norm = abs(expected - norm.statistics.reference_norm) <= margin
    return is_whole_norm and abs(own - norm.statistics.candidate_norm) <= margin


def _optimizer(results: Sequence[TensorResult]) -> tuple[Culprit, ...]:
    """Whether the step was made at all, then its state, then what it changed."""
    return _left_out(results) or _optimizer_state(results) or _updates(results)


def _left_out(results: Sequence[TensorResult]) -> tuple[Culprit, ...]:
    updated, wrong = of_kind(results, Kind.PARAM_AFTER)
    failed = [result for result in wrong if is_left_out(result)]
    blame = Blame.at(Stage.OPTIMIZER_STEP, Phase.UPDATE)
    return (blame_together(blame, Reason.NOT_LEFT_OUT_BY_ALL, failed, updated),) if failed else ()


def _optimizer_state(results: Sequence[TensorResult]) -> tuple[Culprit, ...]:
    states, failed = of_kind(results, Kind.OPTIMIZER)
    if not failed:
        return ()
    seen = _are_gradients_seen(failed, results)
    reason = Reason.OPTIMIZER_STATE if seen else Reason.STATE_OF_UNSEEN_GRADIENTS
    culprit = blame_together(Blame.at(Stage.OPTIMIZER_STEP, Phase.STATE), reason, failed, states)
    if all(result.verdict is Verdict.MISSING for result in failed):
        return (replace(culprit, reason=Reason.NO_STATE, count=len(_owners(failed)), total=0),)
    return (culprit,)


def _updates(results: Sequence[TensorResult]) -> tuple[Culprit, ...]:
    # wq and wo have new parameters, in bfloat16 with a master copy of each in float32:
    #     wq fails, wo passes            the update of wq
    #     both fail, and their copies    the optimizer step
    #     both fail, the copies pass     the optimizer step: PARAMETERS_BUT_NOT_COPIES
    updated, failed = of_kind(results, Kind.PARAM_AFTER)
    if not failed:
        return ()
    seen = _are_gradients_seen(failed, results)
    reason = Reason.ALL_NEW_PARAMETERS if seen else Reason.PARAMETERS_OF_UNSEEN_GRADIENTS
    copies = [result for result in updated if result.id.slot.endswith(MASTER)]
    if copies and not any(result.verdict.is_failure for result in copies):
        updated = [result for result in updated if not result.id.slot.endswith(MASTER)]
        reason = Reason.PARAMETERS_BUT_NOT_COPIES
    is_by_chance = any(result.finding is Finding.ROUNDED_ALIKE for result in failed)
    if seen and not is_by_chance and not is_everywhere(failed, updated):
        return by_module(failed, Phase.UPDATE, Reason.NEW_PARAMETER)
    return (blame_together(Blame.at(Stage.OPTIMIZER_STEP, Phase.UPDATE), reason, failed, updated),)


def _owners(results: Sequence[TensorResult]) -> set[tuple[str, str]]:
    """The parameters that states and copies belong to."""
    return {(result.id.module, result.id.slot.partition(".")[0]) for result in results}


def _are_gradients_seen(failed: Sequence[TensorResult], results: Sequence[TensorResult]) -> bool:
    """Whether anything was recorded of the gradients from which these were made."""
    gradients = (Kind.REDUCED_GRAD, Kind.MAIN_GRAD, Kind.CLIPPED_GRAD)
    return _owners(failed) <= {_owner(r) for r in results if r.id.kind in gradients}


def _buffers(results: Sequence[TensorResult]) -> tuple[Culprit, ...]:
    return by_module(of_kind(results, Kind.BUFFER)[1], Phase.BUFFER, Reason.BUFFER)


# In the order of a step: what an earlier one finds explains what the later ones would.
AFTER_BACKWARD = (
    _accumulation,
    _reduced_gradients,
    _main_gradients,
    _clipping,
    _optimizer,
    _buffers,
)
