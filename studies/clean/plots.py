"""The plot of docs/reference/clean.md: the largest ratio of every check against its rows.

$ python -m studies.clean.plots [FILE ...]     (needs matplotlib: pip install '.[bench]')
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from studies.clean.check import Check, read_checks
from studies.clean.design import SWEPT_ROWS
from studies.clean.table import JSON, ROOT

IMAGE = ROOT / "docs" / "images" / "clean-rows.svg"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m studies.clean.plots", description=__doc__)
    parser.add_argument("files", nargs="*", type=Path, default=[JSON], metavar="FILE")
    found = [check for file in parser.parse_args(arguments).files for check in read_checks(file)]
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "ttrace"  # the same file from the same numbers
    from matplotlib import pyplot as plt

    _draw(plt, found)


def _draw(plt: Any, checks: Sequence[Check]) -> None:
    """All runs in grey, and a line for each architecture of the sweep."""
    figure, axes = plt.subplots(2, 2, figsize=(9, 6.4), sharex=True, sharey=True)
    for row, dtype in zip(axes, ("fp32", "bf16"), strict=True):
        for axis, isolated in zip(row, (False, True), strict=True):
            own = [
                (check.case, max(check.largest, 1e-3))  # 1e-3: a logarithm needs a floor
                for check in checks
                if check.isolated == isolated and check.case.dtype == dtype
            ]
            axis.scatter([c.rows for c, _ in own], [r for _, r in own], s=5, color="lightgrey")
            _lines(axis, [(c.architecture, c.rows, r) for c, r in own if c.group == "rows"])
            axis.axhline(1.0, color="black", linewidth=0.8)
            title = f"{dtype}, {'isolated' if isolated else 'plain'}"
            axis.set(xscale="log", yscale="log", title=title)
    for axis in axes[1]:
        axis.set_xlabel("rows")
    for axis in axes[:, 0]:
        axis.set_ylabel("largest error / tolerance")
    named = [
        pair for axis in axes.flat for pair in zip(*axis.get_legend_handles_labels(), strict=True)
    ]
    legend = {label: line for line, label in sorted(named, key=lambda pair: str(pair[1]))}
    figure.legend(legend.values(), legend.keys(), fontsize=7, loc="lower center", ncols=5)
    figure.tight_layout(rect=(0, 0.09, 1, 1))  # above the legend
    figure.savefig(IMAGE, metadata={"Date": None})
    plt.close(figure)


def _lines(axis: Any, points: Sequence[tuple[str, int, float]]) -> None:
    """The largest of the seeds at each size; every architecture has its colour everywhere."""
    for name in sorted({name for name, _, _ in points}):
        largest: dict[int, float] = {}
        for series, rows, ratio in points:
            if series == name:
                largest[rows] = max(largest.get(rows, 0.0), ratio)
        color = f"C{list(SWEPT_ROWS).index(name)}"
        sizes, ratios = zip(*sorted(largest.items()), strict=True)
        axis.plot(sizes, ratios, "o-", markersize=3, color=color, label=name)


if __name__ == "__main__":
    main()
