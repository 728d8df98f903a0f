"""Plots of docs/reference/power.md and docs/explanation/rounding.md, from the JSON of the runs.

$ python -m studies.power.plots     (needs matplotlib: pip install '.[bench]')
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
IMAGES = HERE.parents[1] / "docs" / "images"


def main() -> None:
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "ttrace"  # the same file from the same numbers
    from matplotlib import pyplot as plt

    IMAGES.mkdir(exist_ok=True)
    power = json.loads((HERE / "power.json").read_text())
    _false_alarms(plt, power["roc"])
    _roc(plt, power["roc"])
    _sizes(plt, power["detectable_at_95_percent"]["256"])
    _depth(plt, json.loads((HERE / "depth.json").read_text()))


def _false_alarms(plt: Any, roc: dict[str, Any]) -> None:
    """On clean runs, while every method's threshold is scaled."""
    figure, axes = plt.subplots(1, len(roc), figsize=(9, 3.9), sharey=True)
    for axis, (dtype, curves) in zip(axes, roc.items(), strict=True):
        for name, curve in curves.items():
            axis.plot(curve["scales"], curve["clean runs with an alarm"], label=_title(name))
        axis.axvline(1.0, color="grey", linewidth=0.8)
        axis.set(xscale="log", xlabel="threshold / nominal", title=dtype)
    axes[0].set_ylabel("clean runs with an alarm")
    _save(plt, figure, "false-alarms.svg")


def _roc(plt: Any, roc: dict[str, Any]) -> None:
    """What is found at the price of which alarms; a dot is the nominal threshold."""
    figure, axes = plt.subplots(1, len(roc), figsize=(9, 4.5), sharey=True)
    for axis, (dtype, curves) in zip(axes, roc.items(), strict=True):
        for name, curve in curves.items():
            alarms, found = curve["clean runs with an alarm"], curve["planted errors found"]
            (line,) = axis.plot(alarms, found, label=_title(name))
            nominal = min(range(len(alarms)), key=lambda i: abs(math.log(curve["scales"][i])))
            axis.plot(alarms[nominal], found[nominal], "o", color=line.get_color())
        axis.set_xscale("symlog", linthresh=0.01)
        axis.set(xlim=(-0.001, 1), xlabel="clean runs with an alarm", title=dtype)
    axes[0].set_ylabel("planted errors found")
    _save(plt, figure, "roc.svg")


def _sizes(plt: Any, table: dict[str, Any]) -> None:
    figure, axes = plt.subplots(1, len(table), figsize=(10, 4.6), sharey=True, squeeze=False)
    for axis, (dtype, kinds) in zip(axes[0], table.items(), strict=True):
        for number, name in enumerate(next(iter(kinds.values()))):
            sizes = [kinds[kind][name] for kind in kinds]
            places = [index + 0.1 * number for index in range(len(kinds))]
            axis.scatter(sizes, places, s=14, label=_title(name))
        axis.set_yticks(range(len(kinds)), list(kinds))
        axis.set(xscale="log", xlabel="smallest size found at 95%", title=dtype)
    _save(plt, figure, "detectable.svg")


def _depth(plt: Any, points: dict[str, Any]) -> None:
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.9), sharey=True)
    for axis, part in zip(axes, ("forward", "backward"), strict=True):
        for color, (dtype, found) in zip(("C0", "C3"), points.items(), strict=True):
            depths = [int(depth) for depth in found]
            for line, style in (("measured", "o-"), ("tolerance", "--"), ("bound", ":")):
                values = [found[str(depth)][part][line] for depth in depths]
                axis.plot(depths, values, style, color=color, label=f"{dtype} {line}")
        axis.set(xscale="log", yscale="log", xlabel="layers", title=part)
        axis.set_xticks(depths, [str(depth) for depth in depths])
        axis.minorticks_off()
    axes[0].set_ylabel("relative error")
    _save(plt, figure, "depth.svg")


def _title(method: str) -> str:
    return method.replace("ours", "TTrace")


def _save(plt: Any, figure: Any, name: str) -> None:
    lines, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(lines, labels, fontsize=7, loc="lower center", ncols=4)
    figure.tight_layout(rect=(0, 0.12, 1, 1))  # above the legend
    figure.savefig(IMAGES / name, metadata={"Date": None})
    plt.close(figure)


if __name__ == "__main__":
    main()
