"""A case: a recipe in a layout, and the case that is its reference.

    Case(recipe="rowwise", layout="tp2", dtype="bf16", seed=2)

Plain values, so that it travels to other processes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, cast

import torch

LayoutName = Literal["one", "ddp2", "fsdp2", "tp2", "tp2-sp"]
DtypeName = Literal["fp32", "bf16"]
DTYPES: dict[DtypeName, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16}
DATA_PARALLEL: tuple[LayoutName, ...] = ("ddp2", "fsdp2")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """`microbatches` are those of the reference: data-parallel ranks have one each."""

    recipe: str
    layout: LayoutName = "ddp2"
    ranks: int = 2
    dtype: DtypeName = "bf16"
    seed: int = 1
    microbatches: int = 1
    steps: int = 0  # as many as the recipe needs to show itself
    recomputes: bool = False  # the MLP of the last layer, in backward
    device: str = "cpu"
    is_real: bool = False  # products of codes by torch._scaled_mm instead of emulated ones
    bugs: frozenset[str] = frozenset()

    @property
    def needs(self) -> tuple[str, ...]:
        """Packages beside torch."""
        return ("torchao",) if self.recipe.startswith("torchao") else ()

    @property
    def key(self) -> str:
        return f"{self.recipe}/{self.layout}/{self.dtype}/s{self.seed}"

    @classmethod
    def from_key(cls, key: str) -> Case:
        """The inverse of `key`."""
        recipe, layout, dtype, seed = key.split("/")
        return cls(
            recipe=recipe,
            layout=cast(LayoutName, layout),
            dtype=cast(DtypeName, dtype),
            seed=int(seed[1:]),
        )

    def reference(self, *, by_batches_of_ranks: bool, keeps_layout: bool) -> Case:
        """The same in one process, of the whole batch or of the ranks' batches one by one.

        `keeps_layout`: what wraps the model rounds by itself, in one process as in two.
        """
        is_cut = by_batches_of_ranks and self.layout in DATA_PARALLEL
        return replace(
            self,
            layout=self.layout if keeps_layout else "one",
            ranks=1,
            microbatches=2 if is_cut else 1,
            bugs=frozenset(),
        )
