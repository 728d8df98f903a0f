"""Codes that a module makes in one of both runs alone: a diagnosis, where nothing else is one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ttrace.analysis.recipes import diagnose_recipes
from ttrace.core.blame import Blame, Culprit, Diagnosis, Mistake, Phase, Reason
from ttrace.core.ids import TensorId

E4M3, E5M2 = ["float8_e4m3fn"], ["float8_e5m2"]
RECIPE = {"a.w1": E4M3, "a.w2": E4M3, "b.w1": E4M3, "b.w2": E4M3}
LEFT_OUT = {path: codes for path, codes in RECIPE.items() if path != "a.w2"}
WRONG = Culprit(
    blame=Blame.of("a.w2", phase=Phase.FORWARD),
    reason=Reason.GIVEN_REFERENCE_VALUES,
    evidence=(TensorId.parse("step0/a.w2:output.0"),),
)


def diagnosis(candidate: dict[str, list[str]] | None, culprit: Culprit = WRONG) -> Diagnosis | None:
    return diagnose_recipes([culprit], RECIPE, candidate)[0].diagnosis


def test_a_module_that_makes_no_codes_was_not_quantised() -> None:
    found = diagnosis(LEFT_OUT)
    assert found == Diagnosis(mistake=Mistake.NOT_QUANTISED, reference_dtype="float8_e4m3fn")


def test_codes_of_another_format_are_named() -> None:
    found = diagnosis(RECIPE | {"a.w2": E4M3 + E5M2})
    assert found is not None
    assert (found.mistake, found.dtype) == (Mistake.OTHER_CODES, "float8_e5m2")
    assert found.reference_dtype == "float8_e4m3fn"


def test_modules_inside_of_the_blamed_one_count() -> None:
    found = diagnosis(LEFT_OUT, replace(WRONG, blame=Blame.of("a", phase=Phase.BACKWARD)))
    assert found is not None
    assert found.mistake is Mistake.NOT_QUANTISED


@pytest.mark.parametrize(
    "candidate",
    [RECIPE, None, LEFT_OUT | {"a.norm": E4M3}],
    ids=["the same", "nobody watched it", "made beside it"],
)
def test_nothing_is_said(candidate: dict[str, list[str]] | None) -> None:
    assert diagnosis(candidate) is None


def test_what_is_known_already_stays() -> None:
    known = Diagnosis(mistake=Mistake.ALL_ZERO)
    assert diagnosis(LEFT_OUT, replace(WRONG, diagnosis=known)) == known


@pytest.mark.parametrize(
    "blame",
    [
        Blame.of("a.w2", phase=Phase.GRADIENT_REDUCTION),
        Blame.of("a.w1", "a.w2", phase=Phase.FORWARD),
        Blame.of("b", phase=Phase.FORWARD),
    ],
)
def test_other_phases_and_modules_are_left_alone(blame: Blame) -> None:
    assert diagnosis(LEFT_OUT, replace(WRONG, blame=blame)) is None
