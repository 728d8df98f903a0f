"""Stage 5 of 7: localize.

Enters: verdicts in execution order, and which module consumed which tensor. Leaves: where the first
thing went wrong. Everything after the first wrong tensor may be its consequence, so only the
frontier is blamed. It must not know traces or tensors.

    first wrong tensor              blamed
    output of a module              that module, forward
    input of a module               the code of its parent between two children
    gradient of a module's input    that module, backward
    gradient of a module's output   whoever consumed it, backward
    local gradient of a parameter   that module, weight gradient; its reduction where ranks disagree
    gradient given to the reduction the accumulation of that gradient, or of all
    reduced or main gradient        the reduction of that gradient, or of all; the accumulation
    gradient norm, clipped gradient gradient clipping
    state of the optimizer          the optimizer step
    updated parameter               the optimizer step
    buffer                          that module
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence, Set

from ttrace.core.ids import MASTER, Kind, TensorId, display_module
from ttrace.core.results import Culprit, TensorResult, Verdict

Consumers = Mapping[TensorId, tuple[TensorId, ...]]

# Chosen: a bug in one module cannot spoil this share of all gradients while activations are right.
_NEARLY_ALL = 0.9
_MOST = 0.5
# Sums of two terms reduced in bf16 were off by 0.0022 to 0.003 (measured): half of its eps holds
# them, and a contribution that is missing or counted twice weighs more.
_ROUNDED = 2.0**-8


def localize(results: Sequence[TensorResult], consumers: Consumers) -> tuple[Culprit, ...]:
    """The culprits at the frontier of the failures; empty when nothing failed."""
    for step in sorted({result.id.step for result in results}):
        of_step = [result for result in results if result.id.step == step]
        for look in _LOOKS:
            culprits = look(of_step, consumers)
            if culprits:
                return culprits
    return ()


def before_forward(results: Sequence[TensorResult]) -> tuple[Culprit, ...]:
    """Other modules, parameters or data: nothing after them can be judged.

    Of the first step: a later one starts from what the one before it made.
    """
    first = min((result.id.step for result in results), default=0)
    of_first = [result for result in results if result.id.step == first]
    return _absent(of_first, {}) or _start(of_first, {})


def stages_after_backward(
    results: Sequence[TensorResult], consequences: Set[TensorId]
) -> tuple[Culprit, ...]:
    """Every stage between local gradients and new parameters that is wrong by itself.

    `consequences` are those that an earlier part of the step explains.
    """
    unexplained = [result for result in results if result.id not in consequences]
    wrong = {_owner(result) for result in _of_kind(unexplained, Kind.ACCUMULATED_GRAD)[1]}
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


def _absent(results: Sequence[TensorResult], _: Consumers) -> tuple[Culprit, ...]:
    """Modules of which the candidate has nothing at all: dropped layers, other names."""
    verdicts: dict[str, list[TensorResult]] = defaultdict(list)
    for result in results:
        verdicts[result.id.module].append(result)
    absent = [
        module
        for module, found in verdicts.items()
        if module and all(result.verdict is Verdict.MISSING for result in found)
    ]
    outer = _outermost(absent)
    return tuple(
        Culprit(
            where=module,
            part="missing",
            reason="the reference has it, the candidate has no tensor of it",
            evidence=tuple(result.id for result in verdicts[module][:3]),
        )
        for module in outer
    )


def _start(results: Sequence[TensorResult], _: Consumers) -> tuple[Culprit, ...]:
    """Before anything ran: other parameters, other data."""
    parameters, failed = _of_kind(results, Kind.PARAM)
    if failed and failed[0].id.step > 0:
        return _by_module(
            failed, "parameter gather", "its last update passes; at the start of this step"
        )
    if failed:
        few = ", ".join(f"{display_module(r.id.module)}.{r.id.slot}" for r in failed[:3])
        return (
            Culprit(
                where=few if len(failed) <= 3 else _common_module(failed) or "initial parameters",
                part="parameters",
                reason=f"{len(failed)} of {len(parameters)} parameters differ before the step "
                f"({few} first): load the same values in both runs",
                evidence=tuple(result.id for result in failed[:3]),
            ),
        )
    inputs = [
        r for r in results if r.id.kind is Kind.INPUT and r.id.module == "" and r.verdict.is_failure
    ]
    if inputs:
        return (
            Culprit(
                where="model input",
                part="inputs",
                reason="the candidate was given other data than the reference: " + why(inputs[0]),
                evidence=tuple(result.id for result in inputs),
            ),
        )
    return ()


def _forward(results: Sequence[TensorResult], _: Consumers) -> tuple[Culprit, ...]:
    first = _first_failed(results, lambda kind: kind in (Kind.INPUT, Kind.OUTPUT, Kind.LOSS))
    if first is None:
        return ()
    kind, module = first.id.kind, first.id.module
    if kind is Kind.LOSS:
        where, reason = "loss", "every module output passes, the loss does not"
    elif kind is Kind.OUTPUT:
        where, reason = display_module(module), "its output is the first wrong tensor"
    else:
        where = display_module(caller_of(module, {r.id.module for r in results}))
        reason = f"the input it makes for {module} is the first wrong tensor"
    return (
        Culprit(
            where=where, part="forward", reason=f"{reason}: {why(first)}", evidence=(first.id,)
        ),
    )


def _backward(results: Sequence[TensorResult], consumers: Consumers) -> tuple[Culprit, ...]:
    first = _first_failed(results, lambda kind: kind.is_gradient_of_activation)
    if first is None:
        return ()
    id_ = first.id
    if id_.kind is Kind.GRAD_INPUT:
        where, reason = display_module(id_.module), "the gradient of its input is the first wrong"
    else:
        users = _outermost(
            [user.module for user in consumers.get(id_, ()) if user.kind is Kind.GRAD_INPUT]
        )
        produced = f"the gradient it passes back to {display_module(id_.module)} is the first wrong"
        if users:
            where, reason = " or ".join(users), produced
        elif id_.module == "":
            where, reason = "loss", "the gradient of the model's output is the first wrong"
        else:
            caller = caller_of(id_.module, {r.id.module for r in results})
            where, reason = display_module(caller), produced
    return (
        Culprit(where=where, part="backward", reason=f"{reason}: {why(first)}", evidence=(id_,)),
    )


def _local_gradients(results: Sequence[TensorResult], _: Consumers) -> tuple[Culprit, ...]:
    gradients, failed = _of_kind(results, Kind.GRAD)
    reason = "activations and their gradients pass"
    if failed and len(failed) > 1 and _is_everywhere(failed, gradients):
        return (
            Culprit(
                where="backward",
                part="weight gradient",
                reason=f"{reason}, {len(failed)} of {len(gradients)} local gradients of parameters "
                "do not",
                evidence=tuple(result.id for result in failed[:3]),
            ),
        )
    # A gradient that claims to be whole on every rank but is not the same was never summed.
    unsummed = [result for result in failed if result.verdict is Verdict.CONFLICT]
    others = [result for result in failed if result.verdict is not Verdict.CONFLICT]
    return (
        *_by_module(others, "weight gradient", reason),
        *_by_module(unsummed, "gradient reduction", reason),
    )


def _accumulation(results: Sequence[TensorResult], _: Consumers) -> tuple[Culprit, ...]:
    gradients, failed = _of_kind(results, Kind.ACCUMULATED_GRAD)
    if not failed:
        return ()
    if not _is_everywhere(failed, gradients):
        return _by_module(failed, "gradient accumulation", "its local gradient passes, accumulated")
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
    gradients, failed = _of_kind(results, kind)
    if not failed:
        return ()
    if not _is_everywhere(failed, gradients):
        local = {(r.id.module, r.id.slot) for r in results if r.id.kind is Kind.GRAD}
        seen = [r for r in failed if (r.id.module, r.id.slot) in local]
        unseen = [r for r in failed if (r.id.module, r.id.slot) not in local]
        return (
            *_by_module(seen, "gradient reduction", passing),
            *_by_module(unseen, "main gradient", "activations and their gradients pass"),
        )
    factor = _common_factor(failed)
    conflict = any(result.verdict is Verdict.CONFLICT for result in failed)
    if factor is not None:
        where, reason = (
            "gradient reduction",
            f"all {name} are {factor:.4g} times the reference's",
        )
    elif conflict:
        where, reason = "gradient reduction", f"replicas of the {name} disagree"
    elif all(map(_is_rounded, failed)):
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
    norms, failed_norms = _of_kind(results, Kind.GRAD_NORM)
    failed_norms = [norm for norm in failed_norms if not _is_norm_of_own(norm, results)]
    clipped, failed = _of_kind(results, Kind.CLIPPED_GRAD)
    later = (*_of_kind(results, Kind.OPTIMIZER)[1], *_of_kind(results, Kind.PARAM_AFTER)[1])
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
    found = _of_kind(results, Kind.MAIN_GRAD)[0]
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
    states, failed = _of_kind(results, Kind.OPTIMIZER)
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
    updated, failed = _of_kind(results, Kind.PARAM_AFTER)
    if not failed:
        return ()
    reason = "main gradients pass"
    copies = [result for result in updated if result.id.slot.endswith(MASTER)]
    if copies and not any(result.verdict.is_failure for result in copies):
        updated = [result for result in updated if not result.id.slot.endswith(MASTER)]
        reason = "the optimizer's copies in full precision pass"
    if not _is_everywhere(failed, updated):
        return _by_module(failed, "update", "its main gradient passes")
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
    return _by_module(_of_kind(results, Kind.BUFFER)[1], "buffer", "everything else passes")


# In the order of a step: what an earlier one finds explains what the later ones would.
_LOOKS = (
    _absent,
    _start,
    _forward,
    _backward,
    _local_gradients,
    _accumulation,
    _reduced_gradients,
    _main_gradients,
    _clipping,
    _optimizer_state,
    _updates,
    _buffers,
)


def _of_kind(
    results: Sequence[TensorResult], kind: Kind
) -> tuple[list[TensorResult], list[TensorResult]]:
    """All of a kind, and those that failed."""
    found = [result for result in results if result.id.kind is kind]
    return found, [result for result in found if result.verdict.is_failure]


def _is_everywhere(failed: Sequence[TensorResult], all_: Sequence[TensorResult]) -> bool:
    """Whether the failures point to a stage of the step; exactly equal tensors say little.

    A low-precision parameter may not move at all in one step, so its update cannot be wrong.
    """
    equal = [r for r in all_ if r.statistics is not None and r.statistics.equal]
    could_fail = len(all_) - len(equal)
    return len(failed) >= _NEARLY_ALL * could_fail and len(failed) >= _MOST * len(all_)


def _by_module(failed: Sequence[TensorResult], part: str, reason: str) -> tuple[Culprit, ...]:
    groups: dict[str, list[TensorResult]] = defaultdict(list)
    for result in failed:
        groups[result.id.module].append(result)
    return tuple(
        Culprit(
            where=display_module(module),
            part=part,
            reason=f"{reason}, {', '.join(r.id.slot for r in group)} does not: {why(group[0])}",
            evidence=tuple(result.id for result in group),
        )
        for module, group in groups.items()
    )


def _first_failed(
    results: Sequence[TensorResult], wanted: Callable[[Kind], bool]
) -> TensorResult | None:
    failed = (r for r in results if wanted(r.id.kind) and r.verdict.is_failure)
    return min(failed, key=lambda result: result.order, default=None)


def why(result: TensorResult) -> str:
    if result.verdict is Verdict.MISMATCH and result.ratio is not None:
        extra = f", {result.note}" if result.note else ""
        size = "far beyond" if math.isinf(result.ratio) else f"{result.ratio:.3g} times"
        return f"{size} its tolerance{extra}"
    return f"{result.verdict.value}, {result.note}" if result.note else result.verdict.value


def _common_factor(failed: Sequence[TensorResult]) -> float | None:
    gains = [r.statistics.gain for r in failed if r.statistics is not None and "factor" in r.note]
    if len(gains) < _NEARLY_ALL * len(failed):
        return None
    middle = sorted(gains)[len(gains) // 2]
    return middle if all(abs(gain / middle - 1) < 0.01 for gain in gains) else None


def _is_rounded(result: TensorResult) -> bool:
    """Off by no more than a wide tensor is after a few roundings to bf16."""
    wide = result.dtype in ("float32", "float64")
    found = result.statistics
    return wide and found is not None and found.relative_error < _ROUNDED


def _common_module(failed: Sequence[TensorResult]) -> str:
    """The innermost module that holds all of them; empty when that is the model."""
    common: list[str] = []
    for names in zip(*(result.id.module.split(".") for result in failed), strict=False):
        if len(set(names)) > 1:
            break
        common.append(names[0])
    return ".".join(common)


def _outermost(modules: Sequence[str]) -> list[str]:
    unique = list(dict.fromkeys(modules))
    return [m for m in unique if not any(m.startswith(f"{other}.") for other in unique)]


def parent_of(module: str) -> str:
    return module.rpartition(".")[0]


def caller_of(module: str, known: Set[str]) -> str:
    """The nearest parent with tensors of its own: a list of modules has no code."""
    parent = parent_of(module)
    return parent if not parent or parent in known else caller_of(parent, known)
