"""Error over tolerance for experiment trackers: TensorBoard scalars, a Weights & Biases table.

    ttrace/error_over_tolerance/grad    the worst of a kind, for every step
    ttrace/wrong                        how many tensors failed in a step, measurable or not

Enters: a CheckResult. Leaves: event files, or a table to log. Both packages are imported on demand.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from ttrace.core.ids import display_module
from ttrace.core.results import CheckResult
from ttrace.errors import UsageError
from ttrace.text import inert

COLUMNS = ["module", "kind", "slot", "step", "error_over_tolerance", "verdict"]


def scalars(result: CheckResult) -> dict[tuple[str, int], float]:
    """By name and step. What cannot be measured (missing, NaN) has no ratio and is only counted."""
    found: dict[tuple[str, int], float] = {}
    for tensor in result.tensors:
        step = tensor.id.step
        wrong = "ttrace/wrong", step
        found[wrong] = found.get(wrong, 0.0) + tensor.verdict.is_failure
        if tensor.ratio is None or math.isnan(tensor.ratio):
            continue
        for name in ("all", tensor.id.kind.value):
            key = f"ttrace/error_over_tolerance/{name}", step
            found[key] = max(found.get(key, 0.0), tensor.ratio)
    return found


def write_scalars(result: CheckResult, folder: Path) -> int:
    """Write event files into the folder; how many scalars they hold."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise _not_installed("TensorBoard", "tensorboard", error) from error
    found = scalars(result)
    with SummaryWriter(str(folder)) as writer:
        for (name, step), value in found.items():
            writer.add_scalar(name, value, step)
    return len(found)


def rows(result: CheckResult) -> list[list[str | int | float | None]]:
    """Every tensor; a ratio that is not a finite number is None, and the verdict says why."""
    return [
        [
            display_module(tensor.id.module),
            tensor.id.kind.value,
            inert(tensor.id.slot),
            tensor.id.step,
            tensor.ratio if tensor.ratio is not None and math.isfinite(tensor.ratio) else None,
            tensor.verdict.value,
        ]
        for tensor in result.tensors
    ]


def wandb_table(result: CheckResult) -> Any:
    """A table for `wandb.log({"ttrace": wandb_table(result)})`."""
    try:
        import wandb
    except ImportError as error:
        raise _not_installed("Weights & Biases", "wandb", error) from error
    return wandb.Table(columns=COLUMNS, data=rows(result))


def _not_installed(what: str, package: str, error: ImportError) -> UsageError:
    return UsageError(
        f"{what} is not installed ({error}): `pip install {package}`, or use another form of report"
    )
