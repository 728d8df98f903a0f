"""What a fix did: two results, before and after it, become one value.

A place is the same in both if its phase is, and its stage or one of its modules. Evidence of
places is looked up in the comparison that blamed them, since an isolated run judges otherwise.

Enters: two results. Leaves: a Fix. It must not know where results come from.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from ttrace.core.blame import Blame, Culprit
from ttrace.core.fix import (
    BlamedBoth,
    Fix,
    FixVerdict,
    Sighting,
    Standing,
    TensorBoth,
    Trend,
)
from ttrace.core.ids import TensorId
from ttrace.core.results import CheckResult, Outcome, TensorResult, Verdict

_Tensors = Mapping[TensorId, TensorResult]


def tried(before: CheckResult, after: CheckResult) -> Fix:
    """What changed from one result to the other."""
    old, new = _by_id(before), _by_id(after)
    ids = list(dict.fromkeys((*new, *old)))
    pairs = [_pair(id_, old.get(id_), new.get(id_)) for id_ in ids]
    shared = [pair for pair in pairs if pair.before is not None and pair.after is not None]
    fix = Fix(
        verdict=FixVerdict.NOT_COMPARABLE,
        before=before.outcome,
        after=after.outcome,
        shared=len(shared),
        only_before=tuple(pair for pair in pairs if pair.after is None),
        only_after=tuple(pair for pair in pairs if pair.before is None),
    )
    if not shared:
        return fix
    return _judged(_with_places(_with_tensors(fix, shared), before, after))


def _by_id(result: CheckResult) -> dict[TensorId, TensorResult]:
    return {tensor.id: tensor for tensor in result.tensors}


def _pair(id_: TensorId, old: TensorResult | None, new: TensorResult | None) -> TensorBoth:
    return TensorBoth(
        id=id_,
        before=None if old is None else Standing.of(old),
        after=None if new is None else Standing.of(new),
    )


def _with_tensors(fix: Fix, shared: Iterable[TensorBoth]) -> Fix:
    found: dict[str, list[TensorBoth]] = {}
    for pair in shared:
        if (name := _group(pair)) is not None:
            found.setdefault(name, []).append(pair)
    groups: dict[str, Any] = {name: tuple(pairs) for name, pairs in found.items()}
    if "failing" in groups:
        worst = sorted(groups["failing"], key=lambda pair: -_severity(pair.after))
        groups["failing"] = tuple(worst)
    return replace(fix, **groups)


def _severity(standing: Standing | None) -> float:
    return 0.0 if standing is None else standing.severity


def _group(pair: TensorBoth) -> str | None:
    """The field of a Fix in which a tensor of both results stands, if it is in any."""
    old, new = pair.before, pair.after
    assert old is not None
    assert new is not None
    if new.verdict.is_failure:
        return "failing" if old.verdict.is_failure else "newly_failing"
    if new.verdict is Verdict.UNDECIDED:
        return None if old.verdict is Verdict.UNDECIDED else "undecided"
    if not old.verdict.is_failure:
        return None
    return "accepted" if new.verdict is Verdict.ACCEPTED else "fixed"


def _with_places(fix: Fix, before: CheckResult, after: CheckResult) -> Fix:
    old, new = _by_id(before.blamed_in), _by_id(after.blamed_in)
    left = list(before.culprits)
    remaining, fresh = [], []
    for culprit in after.culprits:
        same = next((each for each in left if _is_same(each.blame, culprit.blame)), None)
        standing = _worst(culprit, new)
        if same is None:
            seen = _sighting(culprit, before, after)
            fresh.append(
                BlamedBoth(blame=culprit.blame, before=None, after=standing, sighting=seen)
            )
            continue
        left.remove(same)
        remaining.append(BlamedBoth(blame=culprit.blame, before=_worst(same, old), after=standing))
    gone = [BlamedBoth(blame=each.blame, before=_worst(each, old), after=None) for each in left]
    return replace(fix, gone=tuple(gone), remaining=tuple(remaining), new=tuple(fresh))


def _is_same(one: Blame, other: Blame) -> bool:
    if one.phase is not other.phase or one.stage is not other.stage:
        return False
    return one.stage is not None or bool({*one.modules} & {*other.modules})


def _worst(culprit: Culprit, tensors: _Tensors) -> Standing | None:
    found = [tensors[id_] for id_ in culprit.evidence if id_ in tensors]
    worst = max(found, key=lambda tensor: tensor.severity, default=None)
    return None if worst is None else Standing.of(worst)


def _sighting(culprit: Culprit, before: CheckResult, after: CheckResult) -> Sighting:
    """What was said of its evidence in the comparison of the same kind, where there was one."""
    isolated = after.blamed_in is not after
    source = before.isolation if isolated else before
    if source is None or not culprit.evidence:
        return Sighting.UNKNOWN
    tensors = _by_id(source)
    found = [Standing.of(tensors[id_]) for id_ in culprit.evidence if id_ in tensors]
    if any(each.verdict.is_failure and each.verdict not in _UNMEASURED for each in found):
        return Sighting.FAILED
    if len(found) == len(culprit.evidence) and all(each.passes for each in found):
        return Sighting.PASSED
    return Sighting.NOT_JUDGED


# Failures that say nothing of how far a tensor is off: it was not there to be measured.
_UNMEASURED = (Verdict.MISSING, Verdict.INCOMPLETE, Verdict.SHAPE)


def _judged(fix: Fix) -> Fix:
    return replace(fix, verdict=_verdict(fix))


def _verdict(fix: Fix) -> FixVerdict:
    if fix.after is Outcome.UNDECIDED:
        return FixVerdict.UNDECIDED
    if fix.before is Outcome.UNDECIDED:
        return FixVerdict.DECIDED
    if fix.after is Outcome.EQUIVALENT:
        if fix.before is Outcome.EQUIVALENT:
            return FixVerdict.NO_CHANGE
        if fix.accepted:
            return FixVerdict.ACCEPTED
        return FixVerdict.FIXED_AS_SEEN if fix.unseen else FixVerdict.FIXED
    wrong = [pair for pair in fix.newly_failing if pair.before is not None and pair.before.passes]
    is_worse = bool(wrong) or any(each.sighting is Sighting.PASSED for each in fix.new)
    is_better = bool(fix.gone or fix.fixed)
    if not is_better and not is_worse:
        trends = {each.trend for each in (fix.remaining or fix.failing)} - {Trend.SAME}
        is_better, is_worse = trends == {Trend.BETTER}, trends == {Trend.WORSE}
    return {
        (True, True): FixVerdict.MIXED,
        (True, False): FixVerdict.PARTLY_FIXED,
        (False, True): FixVerdict.WORSE,
        (False, False): FixVerdict.NO_CHANGE,
    }[is_better, is_worse]
