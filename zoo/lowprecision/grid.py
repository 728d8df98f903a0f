"""The grid of correct layouts: every recipe in all of its layouts, some with further seeds."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

from zoo.lowprecision.case import Case, DtypeName, LayoutName
from zoo.lowprecision.recipes import RECIPES, Recipe

SEEDS = (1, 2, 3)
# Where flips are rarest, and a single one tells most; layouts of either kind, each with more in it.
FURTHER_SEEDS_OF, FURTHER_LAYOUTS = "fp32", ("fsdp2", "tp2-sp")


def cases(device: str = "cpu", only: Callable[[Case], bool] = lambda case: True) -> list[Case]:
    """All recipes in all of their layouts, and some of these with further seeds."""
    found = (
        Case(recipe=recipe.name, layout=layout, dtype=dtype, seed=seed, device=device)
        for recipe in RECIPES.values()
        for dtype, seed, layout in product(recipe.dtypes, SEEDS, recipe.layouts)
        if seed == SEEDS[0] or _is_repeated(recipe, dtype, layout)
    )
    return sorted((case for case in found if only(case)), key=lambda case: case.seed, reverse=True)


def _is_repeated(recipe: Recipe, dtype: DtypeName, layout: LayoutName) -> bool:
    is_only = len(recipe.dtypes) == 1
    return is_only or (dtype == FURTHER_SEEDS_OF and layout in FURTHER_LAYOUTS)
