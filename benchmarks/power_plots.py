"""Plots of docs/reference/power.md and docs/explanation/rounding.md, from the JSON of the runs.

$ python -m benchmarks.power_plots     (needs matplotlib: pip install '.[bench]')
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
IMAGES = HERE.parent / "docs" / "images"


def main() -> None:
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "ttrace"  # the same file from the same numbers
    from matplotlib import pyplot as plt

    IMAGES.mkdir(exist_ok=True)
    power = json.loads((HERE / "power.json").read_text())
    _roc(plt, power)
    _sizes(plt, power["detectable_at_95_percent"])
    depth = HERE / "power_depth.json"
    if depth.exists():
        _depth(plt, json.loads(depth.read_text()))


def _roc(plt: Any, power: dict[str, Any]) -> None:
    """False alarms on clean runs while every method's threshold is scaled."""
    scales = [10 ** (step / 10 - 2) for step in range(61)]
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.4), sharey=True)
    for axis, dtype in zip(axes, ("float32", "bfloat16"), strict=True):
        plain = [r for r in power["runs"] if r["dtype"] == dtype and not r["isolated"]]
        for name in plain[0]["worst"]:
            shares = [sum(r["worst"][name] > s for r in plain) / len(plain) for s in scales]
            axis.plot(scales, shares, label=name)
        axis.axvline(1.0, color="grey", linewidth=0.8)
        axis.set(xscale="log", xlabel="threshold / nominal", title=dtype)
    axes[0].set_ylabel("clean runs with an alarm")
    axes[0].legend(fontsize=7)
    _save(plt, figure, "false-alarms.svg")


def _sizes(plt: Any, table: dict[str, Any]) -> None:
    figure, axes = plt.subplots(1, len(table), figsize=(10, 4), sharey=True, squeeze=False)
    for axis, (dtype, kinds) in zip(axes[0], table.items(), strict=True):
        for number, name in enumerate(next(iter(kinds.values()))):
            sizes = [kinds[kind][name] for kind in kinds]
            places = [index + 0.1 * number for index in range(len(kinds))]
            axis.scatter(sizes, places, s=14, label=name)
        axis.set_yticks(range(len(kinds)), list(kinds))
        axis.set(xscale="log", xlabel="smallest size found at 95%", title=dtype)
    axes[0][0].legend(fontsize=7)
    _save(plt, figure, "detectable.svg")


def _depth(plt: Any, points: dict[str, Any]) -> None:
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.4), sharey=True)
    for axis, part in zip(axes, ("forward", "backward"), strict=True):
        for dtype, found in points.items():
            depths = [int(depth) for depth in found]
            for line, style in (("measured", "o-"), ("tolerance", "--"), ("bound", ":")):
                values = [found[str(depth)][part][line] for depth in depths]
                axis.plot(depths, values, style, label=f"{dtype} {line}")
        axis.set(xscale="log", yscale="log", xlabel="layers", title=part)
    axes[0].set_ylabel("relative error")
    axes[1].legend(fontsize=7)
    _save(plt, figure, "depth.svg")


def _save(plt: Any, figure: Any, name: str) -> None:
    figure.tight_layout()
    figure.savefig(IMAGES / name, metadata={"Date": None})
    plt.close(figure)


if __name__ == "__main__":
    main()
