"""Modules that the candidate's recipe leaves out, and codes that are made somewhere else."""

from __future__ import annotations

import pytest

from ttrace.analysis.recipes import other_formats, out_of_recipe
from ttrace.core.quantised import WHOLE_NUMBERS

E4M3, E5M2 = ["float8_e4m3fn"], ["float8_e5m2"]
RECIPE = {f"layers.{layer}.mlp.{name}": E4M3 for layer in (0, 1) for name in ("w1", "w2")}
MODULE = "layers.1.mlp.w2"


def without(*modules: str, **more: list[str]) -> dict[str, list[str]]:
    return {path: codes for path, codes in RECIPE.items() if path not in modules} | more


def test_a_module_without_its_codes_is_left_out() -> None:
    assert out_of_recipe(RECIPE, without(MODULE)) == {MODULE: E4M3}


def test_nobody_is_left_out_of_the_same_recipe() -> None:
    assert out_of_recipe(RECIPE, RECIPE) == {}
    assert other_formats(RECIPE, RECIPE) == {}


@pytest.mark.parametrize("reference", [RECIPE, None])
def test_of_a_run_that_nobody_watched_nothing_is_known(
    reference: dict[str, list[str]] | None,
) -> None:
    candidate = None if reference else RECIPE
    assert out_of_recipe(reference, candidate) == {}
    assert other_formats(reference, candidate) == {}


@pytest.mark.parametrize(
    "elsewhere",
    ["layers.1.mlp", "layers.1", "layers.1.mlp.norm", "layers.1.norm", f"{MODULE}.input", ""],
    ids=["around it", "around that", "beside it", "beside that", "inside", "by the model"],
)
def test_codes_that_are_made_elsewhere_are_no_mistake(elsewhere: str) -> None:
    assert out_of_recipe(RECIPE, without(MODULE) | {elsewhere: E4M3}) == {}


@pytest.mark.parametrize("elsewhere", ["lm_head", "layers.0.mlp.norm"])
def test_codes_of_other_layers_excuse_nothing(elsewhere: str) -> None:
    assert out_of_recipe(RECIPE, without(MODULE) | {elsewhere: E4M3}) == {MODULE: E4M3}


def test_where_as_many_differ_nothing_is_known() -> None:
    """What is not seen of a run is not there: kernels that cast inside, compiled functions."""
    assert out_of_recipe(RECIPE, without(MODULE, "layers.0.mlp.w2")) == {}
    assert out_of_recipe(RECIPE, {}) == {}


def test_whole_numbers_are_no_codes() -> None:
    rounding = {f"layers.{layer}.rope": [WHOLE_NUMBERS] for layer in range(9)}
    assert out_of_recipe(RECIPE | rounding, RECIPE) == {}
    assert out_of_recipe(RECIPE | rounding, rounding | without(MODULE)) == {MODULE: E4M3}
    assert out_of_recipe(RECIPE, without(MODULE) | {MODULE: [WHOLE_NUMBERS]}) == {MODULE: E4M3}


def test_another_format_is_told_with_both() -> None:
    assert other_formats(RECIPE, RECIPE | {MODULE: E5M2}) == {MODULE: (E5M2, E4M3)}
    assert other_formats(RECIPE, RECIPE | {MODULE: E4M3 + E5M2}) == {MODULE: (E5M2, E4M3)}


def test_fewer_formats_and_modules_of_its_own_are_none() -> None:
    assert other_formats({"a": E4M3 + E5M2}, {"a": E4M3, "b": E5M2}) == {}
