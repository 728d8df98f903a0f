"""Codes that a module makes in one of both runs alone: a diagnosis, where nothing else is one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ttrace.analysis.diagnose.recipe import unlike_recipes, with_recipes
from ttrace.core.blame import Blame, Culprit, Diagnosis, Mistake, Phase, Reason
from ttrace.core.ids import TensorId

E4M3, E5M2 = ["float8_e4m3fn"], ["float8_e5m2"]
WRONG = Culprit(
    blame=Blame.of("a.w2", phase=Phase.FORWARD),
    reason=Reason.GIVEN_REFERENCE_VALUES,
    evidence=(TensorId.parse("step0/a.w2:output.0"),),
)


def diagnosis(
    reference: dict[str, list[str]] | None,
    candidate: dict[str, list[str]] | None,
    culprit: Culprit = WRONG,
) -> Diagnosis | None:
    return with_recipes([culprit], reference, candidate)[0].diagnosis


def test_a_module_that_makes_no_codes_was_not_quantised() -> None:
    found = diagnosis({"a.w2": E4M3, "a.w1": E4M3}, {"a.w1": E4M3})
    assert found == Diagnosis(mistake=Mistake.NOT_QUANTISED, reference_dtype="float8_e4m3fn")


def test_codes_of_another_format_are_named() -> None:
    found = diagnosis({"a.w2": E4M3}, {"a.w2": E4M3 + E5M2})
    assert found is not None
    assert (found.mistake, found.dtype) == (Mistake.OTHER_CODES, "float8_e5m2")
    assert found.reference_dtype == "float8_e4m3fn"


def test_codes_where_the_reference_makes_none_are_named() -> None:
    found = diagnosis({}, {"a.w2": E5M2})
    assert found is not None
    assert (found.mistake, found.reference_dtype) == (Mistake.OTHER_CODES, "no codes")


def test_modules_inside_of_the_blamed_one_count() -> None:
    found = diagnosis({"a.w2.input": E4M3}, {})
    assert found is not None
    assert found.mistake is Mistake.NOT_QUANTISED


@pytest.mark.parametrize(
    ("reference", "candidate"),
    [
        ({"a.w2": E4M3}, {"a.w2": E4M3}),
        ({"a.w2": E4M3 + E5M2}, {"a.w2": E4M3}),  # some of it is made elsewhere
        ({"a.w2": E4M3}, None),
        (None, {"a.w2": E4M3}),
    ],
    ids=["the same", "fewer", "nobody watched the candidate", "nor the reference"],
)
def test_nothing_is_said(
    reference: dict[str, list[str]] | None, candidate: dict[str, list[str]] | None
) -> None:
    assert diagnosis(reference, candidate) is None
    assert unlike_recipes(reference, candidate) == ()


def test_what_is_known_already_stays() -> None:
    known = Diagnosis(mistake=Mistake.ALL_ZERO)
    assert diagnosis({"a.w2": E4M3}, {}, replace(WRONG, diagnosis=known)) == known


@pytest.mark.parametrize(
    "blame",
    [
        Blame.of("a.w2", phase=Phase.GRADIENT_REDUCTION),
        Blame.of("a.w1", "a.w2", phase=Phase.FORWARD),
    ],
)
def test_another_phase_and_several_modules_are_left_alone(blame: Blame) -> None:
    assert diagnosis({"a.w2": E4M3}, {}, replace(WRONG, blame=blame)) is None


def test_all_modules_that_quantise_otherwise_are_listed() -> None:
    reference = {"a": E4M3, "b": E4M3, "c": E4M3}
    assert unlike_recipes(reference, {"a": E4M3, "c": E5M2, "d": E4M3}) == ("b", "c", "d")
