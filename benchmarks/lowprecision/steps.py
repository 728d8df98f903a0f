"""What recording costs of steps in float8, with the device's own products of codes.

The GPT of benchmarks/gpu, whose linears quantise by a recipe. Enters: recipes. Leaves: the time of
a step without recording, with fingerprints of everything, and with full tensors that are hashed and
not written, each beside plain steps of the same process.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import HashStore

from benchmarks.gpu.full import hashed
from benchmarks.gpu.model import LARGE, GptConfig, Workload, make_workload
from benchmarks.gpu.recording import cost
from zoo.lowprecision.linear import QuantisedLinear, scaled
from zoo.lowprecision.recipes import RECIPES

SIZES = replace(LARGE, layers=8)
_TOKENS = 4096  # chosen: recipes by hand keep what they quantise in fp32 as well


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """Seconds of a step."""

    recipe: str
    plain: float
    fingerprints: float
    plain_beside_full: float
    full: float
    full_bytes: int
    faults: tuple[str, ...] = ()


def measured(
    recipe: str, device: str, *, is_real: bool, config: GptConfig = SIZES, steps: int = 8
) -> Steps:
    make = partial(_workload, recipe, config, is_real)
    with _alone(), tempfile.TemporaryDirectory() as folder:
        plain = cost(recipe, make, None, device, steps)
        prints = cost(recipe, make, "fingerprint", device, steps)
        plain_seconds, full = hashed(make(device), Path(folder))
    summary = full.summary
    faults = ("the full trace has no end",) if summary is None else summary.faults
    return Steps(
        recipe=recipe,
        plain=plain.seconds,
        fingerprints=prints.seconds,
        plain_beside_full=plain_seconds,
        full=full.seconds,
        full_bytes=0 if summary is None else summary.bytes_written,
        faults=(*prints.faults, *faults),
    )


def table(found: Sequence[Steps]) -> str:
    lines = [
        "| recipe | plain step | fingerprints of everything | full, hashed, not written | of it |",
        "|---" * 5 + "|",
    ]
    for each in found:
        cells = (
            each.recipe,
            f"{1e3 * each.plain:.0f} ms",
            f"{1e3 * each.fingerprints:.0f} ms, {each.fingerprints / each.plain:.2f} x",
            f"{1e3 * each.full:.0f} ms, {each.full / each.plain_beside_full:.1f} x",
            f"{each.full_bytes / 1e9:.1f} GB",
        )
        lines.append(f"| {' | '.join(cells)} |")
        lines += [f"| {each.recipe}, said | {fault} | | | |" for fault in each.faults]
    return "\n".join(lines)


def _workload(name: str, config: GptConfig, is_real: bool, device: str) -> Workload:  # noqa: FBT001
    recipe = RECIPES[name]

    def convert(model: Any) -> None:
        recipe.convert(model)
        for module in model.modules():
            if isinstance(module, QuantisedLinear) and is_real:
                module.multiply = scaled
        model.to(device)

    def after_step(model: nn.Module) -> None:
        recipe.after_step(model)

    sequences = max(1, _TOKENS // config.tokens)
    return make_workload(replace(config, sequences=sequences), device, convert, after_step)


@contextmanager
def _alone() -> Iterator[None]:
    """A group of one rank: recipes take maxima over all."""
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
