"""Two results, before and after a fix: each kind of change is told from the others."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import pytest

from tests.support.made_results import made, tensor
from ttrace.analysis.fix import tried
from ttrace.core.blame import Blame, Culprit, Phase, Reason, Stage
from ttrace.core.fix import FixVerdict, Sighting, Trend
from ttrace.core.ids import TensorId
from ttrace.core.results import CheckResult, Outcome, Verdict

CLEAN = made(2)
WRONG = made(2, wrong_layer=1)
Told = float | Verdict


def result(
    tensors: Mapping[str, Told],
    blamed: Mapping[str, tuple[str, ...]] | None = None,
    isolated: CheckResult | None = None,
) -> CheckResult:
    """Of outputs of modules, by their names: an error over tolerance, or a verdict."""
    found = []
    for order, (name, told) in enumerate(tensors.items()):
        verdict = told if isinstance(told, Verdict) else None
        ratio = 3.0 if isinstance(told, Verdict) else told
        found.append(tensor(output(name), order, ratio, verdict))
    culprits = tuple(
        Culprit(
            blame=Blame.of(name, phase=Phase.FORWARD),
            reason=Reason.FIRST_WRONG_OUTPUT,
            evidence=tuple(map(output, evidence)),
        )
        for name, evidence in (blamed or {}).items()
    )
    return replace(CLEAN, tensors=tuple(found), culprits=culprits, isolation=isolated)


def output(name: str) -> TensorId:
    return TensorId.parse(f"step0/{name}:output.0")


def isolated(tensors: Mapping[str, Told], blamed: Mapping[str, tuple[str, ...]]) -> CheckResult:
    inner = result(tensors, blamed)
    return replace(result(dict.fromkeys(tensors, 9e4)), culprits=inner.culprits, isolation=inner)


class TestVerdict:
    def test_a_bug_that_is_gone_is_fixed(self) -> None:
        fix = tried(WRONG, CLEAN)
        assert fix.verdict is FixVerdict.FIXED
        assert (fix.before, fix.after) == (Outcome.NOT_EQUIVALENT, Outcome.EQUIVALENT)
        assert [each.blame for each in fix.gone] == [WRONG.culprits[0].blame]
        assert {pair.id for pair in fix.fixed} == {failed.id for failed in WRONG.failures}
        assert (fix.remaining, fix.new, fix.failing) == ((), (), ())

    def test_the_same_once_more_is_no_change(self) -> None:
        fix = tried(WRONG, WRONG)
        assert fix.verdict is FixVerdict.NO_CHANGE
        assert len(fix.remaining) == 1
        assert len(fix.failing) == len(WRONG.failures)
        assert tried(CLEAN, CLEAN).verdict is FixVerdict.NO_CHANGE

    def test_a_bug_that_was_not_there_is_worse(self) -> None:
        fix = tried(CLEAN, WRONG)
        assert fix.verdict is FixVerdict.WORSE
        assert len(fix.newly_failing) == len(WRONG.failures)

    @pytest.mark.parametrize(
        ("now", "verdict"),
        [
            ({"a": 9e4, "b": 0.1}, FixVerdict.PARTLY_FIXED),
            ({"a": 9e4, "b": 5e4}, FixVerdict.NO_CHANGE),
            ({"a": 20.0, "b": 9e4}, FixVerdict.PARTLY_FIXED),
            ({"a": 9e6, "b": 9e4}, FixVerdict.WORSE),
            ({"a": 20.0, "b": 9e6}, FixVerdict.NO_CHANGE),
        ],
    )
    def test_what_still_fails_is_nearer_or_further(
        self, now: dict[str, Told], verdict: FixVerdict
    ) -> None:
        """Within a factor of two it may be the tolerance, which is measured anew."""
        before = result({"a": 9e4, "b": 9e4}, {"a": ("a",), "b": ("b",)})
        blamed = {name: (name,) for name in now if now[name] != 0.1}
        assert tried(before, result(now, blamed)).verdict is verdict

    def test_what_the_accept_list_allows_is_not_fixed(self) -> None:
        after = result({"a": Verdict.ACCEPTED, "b": 0.1})
        after = replace(CLEAN, tensors=(*CLEAN.tensors, *after.tensors))
        fix = tried(result({"a": 9e4, "b": 9e4}, {"a": ("a",)}), after)
        assert (fix.after, fix.verdict) == (Outcome.EQUIVALENT, FixVerdict.ACCEPTED)
        assert [pair.id.module for pair in fix.accepted] == ["a"]
        assert [pair.id.module for pair in fix.fixed] == ["b"]

    def test_where_what_failed_is_not_there_any_more_not_all_is_seen(self) -> None:
        before = result({"a": 9e4, "b": 9e4, "c": 0.1})
        assert tried(before, result({"a": 0.1, "b": 0.1})).verdict is FixVerdict.FIXED
        fix = tried(before, result({"a": 0.1, "c": 0.1}))
        assert (fix.verdict, fix.unseen) == (FixVerdict.FIXED_AS_SEEN, 1)

    def test_what_decides_nothing_is_no_fix(self) -> None:
        unsure = result({"a": Verdict.UNDECIDED, "b": 0.1})
        fix = tried(result({"a": 9e4, "b": 9e4}), unsure)
        assert fix.verdict is FixVerdict.UNDECIDED
        assert [pair.id.module for pair in fix.undecided] == ["a"]
        assert tried(unsure, result({"a": 9e4, "b": 0.1})).verdict is FixVerdict.DECIDED

    def test_results_without_a_common_tensor_cannot_be_compared(self) -> None:
        fix = tried(result({"a": 9e4}), result({"b": 0.1}))
        assert fix.verdict is FixVerdict.NOT_COMPARABLE
        later = replace(output("a"), step=1)
        other = replace(CLEAN, tensors=(tensor(later, 0, 0.1),))
        assert tried(result({"a": 9e4}), other).verdict is FixVerdict.NOT_COMPARABLE

    def test_tensors_of_one_result_only_are_told(self) -> None:
        fix = tried(result({"a": 9e4, "b": 9e4}), result({"a": 9e4, "c": 0.1}))
        assert fix.shared == 1
        assert [pair.id.module for pair in fix.only_before] == ["b"]
        assert [pair.id.module for pair in fix.only_after] == ["c"]


class TestPlaces:
    def test_with_one_of_several_modules_in_common_are_the_same(self) -> None:
        both = result({"a": 9e4, "b": 9e4}, {"a": ("a",)})
        either = replace(both.culprits[0], blame=Blame.of("b", "a", phase=Phase.FORWARD))
        fix = tried(replace(both, culprits=(either,)), both)
        assert (len(fix.gone), len(fix.remaining), len(fix.new)) == (0, 1, 0)

    def test_of_another_phase_or_stage_are_others(self) -> None:
        both = result({"a": 9e4}, {"a": ("a",)})
        for blame in (
            Blame.of("a", phase=Phase.BACKWARD),
            Blame.at(Stage.LOSS, Phase.FORWARD),
        ):
            other = replace(both, culprits=(replace(both.culprits[0], blame=blame),))
            fix = tried(both, other)
            assert (len(fix.gone), len(fix.remaining), len(fix.new)) == (1, 0, 1)

    def test_have_the_worst_tensor_of_the_comparison_that_blamed_them(self) -> None:
        before = isolated({"a": 7e6, "b": 0.1}, {"a": ("a",)})
        after = isolated({"a": 8e5, "b": 0.1}, {"a": ("a",)})
        (place,) = tried(before, after).remaining
        assert place.before is not None
        assert place.after is not None
        assert (place.before.ratio, place.after.ratio) == (7e6, 8e5)
        assert place.trend is Trend.BETTER


class TestNewPlaces:
    def test_whose_evidence_passed_make_it_worse(self) -> None:
        before = isolated({"a": 9e4, "b": 0.1}, {"a": ("a",)})
        fix = tried(before, isolated({"a": 0.1, "b": 9e4}, {"b": ("b",)}))
        assert [place.sighting for place in fix.new] == [Sighting.PASSED]
        assert fix.verdict is FixVerdict.MIXED

    def test_whose_evidence_failed_may_have_been_hidden(self) -> None:
        """In a plain comparison all that follows from the first error fails."""
        before = result({"a": 9e4, "b": 9e4}, {"a": ("a",)})
        fix = tried(before, result({"a": 0.1, "b": 9e4}, {"b": ("b",)}))
        assert [place.sighting for place in fix.new] == [Sighting.FAILED]
        assert fix.verdict is FixVerdict.PARTLY_FIXED

    @pytest.mark.parametrize("told", [Verdict.MISSING, Verdict.UNDECIDED, None])
    def test_whose_evidence_could_not_be_judged_are_uncovered(self, told: Verdict | None) -> None:
        seen: dict[str, Told] = {"a": 9e4} if told is None else {"a": 9e4, "b": told}
        fix = tried(isolated(seen, {"a": ("a",)}), isolated({"a": 0.1, "b": 9e4}, {"b": ("b",)}))
        assert [place.sighting for place in fix.new] == [Sighting.NOT_JUDGED]
        assert fix.verdict is FixVerdict.PARTLY_FIXED

    def test_that_only_an_isolated_run_could_find_are_just_new(self) -> None:
        before = result({"a": 9e4, "b": 0.1}, {"a": ("a",)})
        fix = tried(before, isolated({"a": 0.1, "b": 9e4}, {"b": ("b",)}))
        assert [place.sighting for place in fix.new] == [Sighting.UNKNOWN]


def test_what_still_fails_has_the_worst_first() -> None:
    before = result({"a": 9e4, "b": 9e4, "c": Verdict.CONFLICT})
    fix = tried(before, result({"a": 50.0, "b": 9e4, "c": Verdict.CONFLICT}))
    assert [pair.id.module for pair in fix.failing] == ["c", "b", "a"]
    assert [pair.trend for pair in fix.failing] == [Trend.SAME, Trend.SAME, Trend.BETTER]
    assert fix.failing[0].after is not None
    assert math.isinf(fix.failing[0].after.severity)
