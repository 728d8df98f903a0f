"""Two results, before and after a fix: root causes are matched, failures are counted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.fixes import CLEAN, output, result
from tests.support.made_results import made, tensor
from ttrace.core.blame import Blame, Phase, Stage
from ttrace.core.results import Outcome, Verdict, compare_results

WRONG = made(2, wrong_layer=1)


def test_a_bug_that_is_gone() -> None:
    fix = compare_results(WRONG, CLEAN)
    assert (fix.before, fix.after) == (Outcome.NOT_EQUIVALENT, Outcome.EQUIVALENT)
    assert fix.gone == tuple(culprit.blame for culprit in WRONG.culprits)
    assert (fix.remaining, fix.new, fix.failing) == ((), (), 0)
    assert fix.passing == len(WRONG.failures)


def test_a_bug_that_was_not_there() -> None:
    fix = compare_results(CLEAN, WRONG)
    assert fix.new == tuple(culprit.blame for culprit in WRONG.culprits)
    assert (fix.passing, fix.newly_failing) == (0, len(WRONG.failures))


def test_the_same_once_more_remains() -> None:
    fix = compare_results(WRONG, WRONG)
    assert (len(fix.gone), len(fix.remaining), len(fix.new)) == (0, 1, 0)
    assert (fix.failing, fix.newly_failing) == (len(WRONG.failures), 0)


def test_every_failure_is_counted_once() -> None:
    before = result(
        {"a": 9e4, "b": 9e4, "c": Verdict.CONFLICT, "d": 9e4, "e": 9e4, "f": 0.1, "g": 0.1}
    )
    after = result(
        {
            "a": 0.1,
            "b": 9e4,
            "c": Verdict.ACCEPTED,
            "d": Verdict.UNDECIDED,
            "f": 9e4,
            "g": 0.1,
            "h": 9e4,
        }
    )
    fix = compare_results(before, after)
    assert (fix.passing, fix.failing, fix.accepted, fix.undecided, fix.absent) == (1, 1, 1, 1, 1)
    assert fix.newly_failing == 2
    assert fix.shared == 6


def test_results_without_a_common_tensor_share_nothing() -> None:
    assert compare_results(result({"a": 9e4}), result({"b": 0.1})).shared == 0
    later = replace(output("a"), step=1)
    other = replace(CLEAN, tensors=(tensor(later, 0, 0.1),))
    assert compare_results(result({"a": 9e4}), other).shared == 0


def test_places_with_one_of_several_modules_in_common_are_the_same() -> None:
    both = result({"a": 9e4, "b": 9e4}, {"a": ("a",)})
    either = replace(both.culprits[0], blame=Blame.of("b", "a", phase=Phase.FORWARD))
    fix = compare_results(replace(both, culprits=(either,)), both)
    assert (len(fix.gone), len(fix.remaining), len(fix.new)) == (0, 1, 0)


@pytest.mark.parametrize(
    "blame", [Blame.of("a", phase=Phase.BACKWARD), Blame.at(Stage.LOSS, Phase.FORWARD)]
)
def test_places_of_another_phase_or_stage_are_others(blame: Blame) -> None:
    both = result({"a": 9e4}, {"a": ("a",)})
    other = replace(both, culprits=(replace(both.culprits[0], blame=blame),))
    fix = compare_results(both, other)
    assert (len(fix.gone), len(fix.remaining), len(fix.new)) == (1, 0, 1)
