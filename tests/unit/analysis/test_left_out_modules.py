"""Modules that make no codes where they should, though their values are as near as codes flip."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.made_results import tensor
from ttrace.analysis.left_out_modules import left_out_modules
from ttrace.core.finding import Finding
from ttrace.core.ids import TensorId
from ttrace.core.results import TensorResult, Verdict

E4M3 = ["float8_e4m3fn"]
RECIPE = {f"layers.{layer}.{name}": E4M3 for layer in (0, 1) for name in ("w1", "w2")}
OUTPUT = TensorId.parse("step0/layers.1.w2:output.0")


def judged(
    candidate: dict[str, list[str]] | None,
    result: TensorResult | None = None,
    reference: dict[str, list[str]] | None = RECIPE,
) -> TensorResult:
    (found,) = left_out_modules([result or tensor(OUTPUT, 0, 0.3)], reference, candidate)
    return found


def without(*modules: str, **more: list[str]) -> dict[str, list[str]]:
    return {path: codes for path, codes in RECIPE.items() if path not in modules} | more


def test_a_layer_that_was_left_out_is_wrong_whatever_its_error_is() -> None:
    found = judged(without("layers.1.w2"))
    assert (found.verdict, found.finding) == (Verdict.MISMATCH, Finding.NO_CODES)
    assert found.specifics is not None
    assert found.specifics.reference_dtype == "float8_e4m3fn"
    assert found.ratio == float("inf")


def test_its_twin_passes() -> None:
    assert judged(RECIPE).verdict is Verdict.PASS


@pytest.mark.parametrize(
    "candidate",
    [
        None,
        {},
        without("layers.0.w2", "layers.1.w2"),
        without("layers.1.w2") | {"layers.1": E4M3},
        without("layers.1.w2") | {"layers.1.norm": E4M3},
    ],
    ids=[
        "nobody watched it",
        "nothing was seen of it",
        "as many do otherwise",
        "what it lies in makes codes",
        "what stands beside it makes codes",
    ],
)
def test_another_way_to_quantise_is_no_mistake(candidate: dict[str, list[str]] | None) -> None:
    assert judged(candidate).verdict is Verdict.PASS


def test_codes_elsewhere_are_no_excuse() -> None:
    found = judged(without("layers.1.w2") | {"layers.0.norm": E4M3})
    assert found.verdict is Verdict.MISMATCH


def test_without_a_perturbed_reference_nothing_is_known() -> None:
    assert judged(without("layers.1.w2"), reference=None).verdict is Verdict.PASS


def test_equal_outputs_are_right() -> None:
    result = tensor(OUTPUT, 0, 0.0)
    assert result.statistics is not None
    equal = replace(result, statistics=replace(result.statistics, error_norm=0.0, unequal=0))
    assert judged(without("layers.1.w2"), equal).verdict is Verdict.PASS


def test_only_outputs_are_judged() -> None:
    result = tensor(replace(OUTPUT, module="layers.1.w1"), 0, 0.3)
    assert judged(without("layers.1.w2"), result).verdict is Verdict.PASS
