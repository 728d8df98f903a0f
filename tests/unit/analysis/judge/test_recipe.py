"""Outputs of modules that were left out of the recipe, though tolerances let them pass."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.judging import ruled
from tests.support.made_results import tensor
from ttrace.analysis.judge.rules.recipe import Recipe
from ttrace.core.finding import Finding
from ttrace.core.ids import TensorId
from ttrace.core.results import TensorResult, Verdict

E4M3 = ["float8_e4m3fn"]
RECIPE = {f"layers.{layer}.{name}": E4M3 for layer in (0, 1) for name in ("w1", "w2")}
LEFT_OUT = {path: codes for path, codes in RECIPE.items() if path != "layers.1.w2"}
OUTPUT = TensorId.parse("step0/layers.1.w2:output.0")


def result(error: float, id_: TensorId = OUTPUT, verdict: Verdict | None = None) -> TensorResult:
    """With an error that is so large beside the reference."""
    found = tensor(id_, 0, 0.3, verdict)
    assert found.statistics is not None
    size = found.statistics.reference_norm
    return replace(found, statistics=replace(found.statistics, error_norm=error * size))


def judged(
    asked: TensorResult,
    candidate: dict[str, list[str]] | None,
    reference: dict[str, list[str]] | None = RECIPE,
) -> TensorResult:
    (found,) = ruled(Recipe(), [asked], codes=(reference, candidate))
    return found


@pytest.mark.parametrize("error", [0.01, 0.038, 0.2])
def test_what_errs_as_much_as_quantising_is_wrong(error: float) -> None:
    found = judged(result(error), LEFT_OUT)
    assert (found.verdict, found.finding) == (Verdict.MISMATCH, Finding.NO_CODES)
    assert found.specifics is not None
    assert found.specifics.reference_dtype == "float8_e4m3fn"
    assert found.ratio == float("inf")


@pytest.mark.parametrize("error", [0.0, 1e-7, 0.002])
def test_what_errs_as_flips_of_codes_do_was_quantised_unseen(error: float) -> None:
    assert judged(result(error), LEFT_OUT).verdict is Verdict.PASS


def test_its_twin_passes() -> None:
    assert judged(result(0.038), RECIPE).verdict is Verdict.PASS


@pytest.mark.parametrize(("reference", "candidate"), [(None, LEFT_OUT), (RECIPE, None)])
def test_of_a_run_that_nobody_watched_nothing_is_known(
    reference: dict[str, list[str]] | None, candidate: dict[str, list[str]] | None
) -> None:
    assert judged(result(0.038), candidate, reference).verdict is Verdict.PASS


@pytest.mark.parametrize("name", ["layers.1.w1:output.0", "layers.1.w2:input.0"])
def test_only_its_outputs_are_judged(name: str) -> None:
    found = judged(result(0.038, TensorId.parse(f"step0/{name}")), LEFT_OUT)
    assert found.verdict is Verdict.PASS


def test_what_fails_already_keeps_its_finding() -> None:
    failed = result(0.038, verdict=Verdict.MISMATCH)
    found = judged(failed, LEFT_OUT)
    assert (found.verdict, found.finding) == (failed.verdict, failed.finding)
