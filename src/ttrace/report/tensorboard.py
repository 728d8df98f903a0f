"""Error over tolerance of every step: TensorBoard scalars, or the rows of a W&B table.

Enters: a CheckResult. Leaves: numbers by name and step. TensorBoard is imported only on demand.
"""

from __future__ import annotations

import math
from pathlib import Path

from ttrace.core.ids import display_module
from ttrace.core.results import CheckResult
from ttrace.errors import UsageError

# For wandb.Table(columns=COLUMNS, data=rows(result)).
COLUMNS = ["module", "kind", "step", "error_over_tolerance", "verdict"]


def rows(result: CheckResult) -> list[list[str | int | float]]:
    return [
        [display_module(t.id.module), t.id.kind.value, t.id.step, t.ratio, t.verdict.value]
        for t in result.tensors
        if t.ratio is not None and math.isfinite(t.ratio)
    ]


def scalars(result: CheckResult) -> dict[tuple[str, int], float]:
    """The worst error over tolerance of every kind of tensor in every step."""
    worst: dict[tuple[str, int], float] = {}
    for tensor in result.tensors:
        if tensor.ratio is None or not math.isfinite(tensor.ratio):
            continue
        for name in ("all", tensor.id.kind.value):
            key = f"ttrace/error_over_tolerance/{name}", tensor.id.step
            worst[key] = max(worst.get(key, 0.0), tensor.ratio)
    return worst


def write_scalars(result: CheckResult, folder: Path) -> int:
    """Write event files into the folder; how many scalars they hold."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise UsageError(
            f"TensorBoard is not installed ({error}): `pip install tensorboard`, or use another "
            "form of report"
        ) from error
    found = scalars(result)
    with SummaryWriter(str(folder)) as writer:
        for (name, step), value in found.items():
            writer.add_scalar(name, value, step)
    return len(found)
