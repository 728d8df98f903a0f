"""What all rules of blame share: choosing results, and grouping them by their modules."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence, Set
from types import MappingProxyType

from ttrace.core.blame import Blame, Culprit, Phase, Reason
from ttrace.core.finding import Finding
from ttrace.core.ids import Kind, TensorId
from ttrace.core.results import Strength, TensorResult

Consumers = Mapping[TensorId, tuple[TensorId, ...]]

# Chosen: a bug in one module cannot spoil this share of all gradients while activations are right.
_NEARLY_ALL = 0.9
_MOST = 0.5
SHOWN = 3  # chosen: tensors that go wrong together show the same mistake
_SCALED = (Finding.CONSTANT_FACTOR, Finding.FACTOR)
_COARSER = (Finding.LOWER_PRECISION, Finding.COARSER_THAN_TERMS)
# Sums of two terms reduced in bf16 were off by 0.0022 to 0.003 (measured): half of its eps holds
# them, and a contribution that is missing or counted twice weighs more.
_ROUNDED = 2.0**-8


def of_kind(
    results: Sequence[TensorResult], kind: Kind
) -> tuple[list[TensorResult], list[TensorResult]]:
    """All of a kind, and those that failed."""
    found = [result for result in results if result.id.kind is kind]
    return found, [result for result in found if result.verdict.is_failure]


def is_everywhere(failed: Sequence[TensorResult], all_: Sequence[TensorResult]) -> bool:
    """Whether the failures point to a stage of the step; exactly equal tensors say little.

    A low-precision parameter may not move at all in one step, so its update cannot be wrong. Where
    precision is lost, what is no finer in the reference has none to lose.
    """
    if failed and all(result.finding in _COARSER for result in failed):
        kept = {result.id for result in failed}
        all_ = [result for result in all_ if result.id in kept or _could_be_coarser(result, failed)]
    equal = [r for r in all_ if r.statistics is not None and r.statistics.equal]
    could_fail = len(all_) - len(equal)
    return len(failed) >= _NEARLY_ALL * could_fail and len(failed) >= _MOST * len(all_)


def _could_be_coarser(result: TensorResult, failed: Sequence[TensorResult]) -> bool:
    losses = (found.statistics.candidate_grain for found in failed if found.statistics is not None)
    least = max((grain for grain in losses if grain is not None), default=0)
    found = result.statistics
    return found is None or found.reference_grain is None or found.reference_grain > least


def by_module(failed: Sequence[TensorResult], phase: Phase, reason: Reason) -> tuple[Culprit, ...]:
    groups: dict[str, list[TensorResult]] = defaultdict(list)
    for result in failed:
        groups[result.id.module].append(result)
    return tuple(
        Culprit(
            blame=Blame.of(module, phase=phase),
            reason=reason,
            evidence=tuple(result.id for result in group),
        )
        for module, group in groups.items()
    )


def blame_together(
    blame: Blame, reason: Reason, failed: Sequence[TensorResult], all_: Sequence[TensorResult]
) -> Culprit:
    """One culprit for tensors that go wrong together: the first of them show the same mistake."""
    return Culprit(
        blame=blame,
        reason=reason,
        evidence=tuple(result.id for result in failed[:SHOWN]),
        count=len(failed),
        total=len(all_),
    )


def by_strength(
    culprits: Sequence[Culprit], results: Sequence[TensorResult]
) -> tuple[Culprit, ...]:
    """The strongest evidence first; culprits of equal strength stay in the order they came in."""
    found = {result.id: result.severity for result in results}

    def rank(culprit: Culprit) -> int:
        return Strength.of(max((found.get(id_, 0.0) for id_ in culprit.evidence), default=0.0)).rank

    return tuple(sorted(culprits, key=rank))


def first_failed(
    results: Sequence[TensorResult], wanted: Callable[[Kind], bool]
) -> TensorResult | None:
    failed = (r for r in results if wanted(r.id.kind) and r.verdict.is_failure)
    return min(failed, key=lambda result: result.order, default=None)


def common_factor(failed: Sequence[TensorResult]) -> float | None:
    gains = [r.statistics.gain for r in failed if r.statistics is not None and r.finding in _SCALED]
    if len(gains) < _NEARLY_ALL * len(failed):
        return None
    middle = sorted(gains)[len(gains) // 2]
    return middle if all(abs(gain / middle - 1) < 0.01 for gain in gains) else None


def is_rounded(result: TensorResult) -> bool:
    """Of a lower precision, or a wide tensor off by no more than after a few roundings to bf16."""
    if result.finding in _COARSER:
        return True
    wide = result.dtype in ("float32", "float64")
    found = result.statistics
    return wide and found is not None and found.relative_error < _ROUNDED


def is_left_out(result: TensorResult) -> bool:
    """Whether it is of a step that not everybody made; steps after it say nothing."""
    return result.finding in (Finding.UPDATED_BY_SOME, Finding.UPDATED_ALONE)


def common_module(failed: Sequence[TensorResult]) -> str:
    """The innermost module that holds all of them; empty when that is the model."""
    common: list[str] = []
    for names in zip(*(result.id.module.split(".") for result in failed), strict=False):
        if len(set(names)) > 1:
            break
        common.append(names[0])
    return ".".join(common)


def outermost(modules: Sequence[str]) -> list[str]:
    unique = list(dict.fromkeys(modules))
    return [m for m in unique if not any(m.startswith(f"{other}.") for other in unique)]


def parent_of(module: str) -> str:
    return module.rpartition(".")[0]


def begun(results: Sequence[TensorResult]) -> dict[str, int]:
    """When each module got its first input."""
    first: dict[str, int] = {}
    for result in results:
        if result.id.kind is Kind.INPUT:
            module = result.id.module
            first[module] = min(result.order, first.get(module, result.order))
    return first


def caller_of(module: str, known: Set[str], begun: Mapping[str, int] = MappingProxyType({})) -> str:
    """The nearest parent with tensors of its own: a list of modules has no code.

    A parent that began only later did not call it: somebody else called a part of that parent.
    """
    start = begun.get(module, math.inf)
    parent = parent_of(module)
    while parent and (parent not in known or begun.get(parent, -1) > start):
        parent = parent_of(parent)
    return parent
