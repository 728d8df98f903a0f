"""What a verdict speaks of: derived from the tensors that were judged, never assumed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.support.made_results import made
from ttrace.core.ids import Kind
from ttrace.core.results import (
    CheckResult,
    Coverage,
    Lost,
    Outcome,
    StepPart,
    TensorResult,
    Verdict,
)

WHOLE = made(2)


def without(*kinds: Kind, module: str | None = None) -> CheckResult:
    def stays(result: TensorResult) -> bool:
        return result.id.kind not in kinds or module not in (None, result.id.module)

    return replace(WHOLE, tensors=tuple(filter(stays, WHOLE.tensors)))


def only(*kinds: Kind) -> CheckResult:
    return without(*(kind for kind in Kind if kind not in kinds))


def whole_parts(result: CheckResult) -> list[StepPart]:
    return [found.part for found in result.covered if found.is_whole]


def test_a_whole_step_is_a_plain_verdict() -> None:
    assert whole_parts(WHOLE) == list(StepPart)
    assert str(WHOLE).startswith("EQUIVALENT: all ")
    assert ";" not in str(WHOLE)


@pytest.mark.parametrize(
    ("result", "starts", "ends"),
    [
        (
            without(Kind.PARAM_AFTER),
            "EQUIVALENT in forward, backward and reduction: all ",
            "; no update was recorded",
        ),
        (
            only(Kind.PARAM, Kind.INPUT, Kind.OUTPUT, Kind.LOSS),
            "EQUIVALENT in forward: all ",
            "; no gradient was recorded",
        ),
        (
            without(Kind.MAIN_GRAD),
            "EQUIVALENT in forward, backward and update: all ",
            "; no reduced gradient was recorded",
        ),
        (
            without(Kind.PARAM_AFTER, module="norm"),
            "EQUIVALENT in forward, backward and reduction: all ",
            "; only 20 of 21 gradients of parameters have a recorded update",
        ),
        (
            replace(WHOLE, coverage=Coverage(candidate_only=("a", "b"))),
            "EQUIVALENT: all ",
            "; 2 modules were called by the candidate only",
        ),
    ],
    ids=["no update", "forward only", "no reduction", "one update lacks", "other modules"],
)
def test_a_part_that_no_run_did_narrows_the_verdict(
    result: CheckResult, starts: str, ends: str
) -> None:
    assert result.outcome is Outcome.EQUIVALENT
    assert str(result).startswith(starts)
    assert str(result).endswith(ends)


def test_a_parameter_without_gradient_needs_no_update() -> None:
    frozen = without(Kind.GRAD, Kind.MAIN_GRAD, Kind.PARAM_AFTER, module="norm")
    assert whole_parts(frozen) == list(StepPart)


def test_a_master_copy_is_the_update_of_its_parameter() -> None:
    tensors = tuple(
        replace(r, id=replace(r.id, slot="weight.master")) if r.id.kind is Kind.PARAM_AFTER else r
        for r in WHOLE.tensors
    )
    assert whole_parts(replace(WHOLE, tensors=tensors)) == list(StepPart)


def marked(verdict: Verdict, wanted: Callable[[TensorResult], bool]) -> CheckResult:
    return replace(
        WHOLE,
        tensors=tuple(
            replace(r, verdict=verdict, statistics=None, ratio=None) if wanted(r) else r
            for r in WHOLE.tensors
        ),
    )


@pytest.mark.parametrize(
    ("result", "lost", "words"),
    [
        (
            only(Kind.PARAM, Kind.INPUT),
            Lost.STEP,
            "nothing could be compared that a training step makes",
        ),
        (
            marked(Verdict.EXTRA, lambda r: r.id.kind is Kind.PARAM_AFTER),
            Lost.REFERENCE,
            "only the candidate has update",
        ),
        (
            replace(WHOLE, coverage=Coverage(faults=("step0/a:grad.weight: sparse",))),
            Lost.RECORDING,
            "first step0/a:grad.weight: sparse",
        ),
        (
            replace(WHOLE, coverage=Coverage(reference_faults=("step0/b:output.0: quantised",))),
            Lost.RECORDING,
            "first step0/b:output.0: quantised",
        ),
    ],
    ids=["nothing of a step", "update of one run", "candidate's fault", "reference's fault"],
)
def test_what_was_expected_and_lost_leaves_the_verdict_open(
    result: CheckResult, lost: Lost, words: str
) -> None:
    assert result.lost == (lost,)
    assert result.outcome is Outcome.UNDECIDED
    assert str(result).startswith("UNDECIDED: ")
    assert words in str(result)


def test_a_tensor_that_only_the_candidate_has_beside_others_is_no_loss() -> None:
    clips = marked(Verdict.EXTRA, lambda r: r.id.kind is Kind.GRAD and r.id.module == "norm")
    assert clips.lost == ()


def test_a_difference_is_one_whatever_was_lost() -> None:
    failing = replace(made(2, wrong_layer=1), coverage=Coverage(faults=("x",)))
    assert failing.outcome is Outcome.NOT_EQUIVALENT
