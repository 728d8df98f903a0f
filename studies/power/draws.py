"""What more perturbed runs give: how far one draw of a reading lies from the mean of N others.

    $ python -m studies.power.draws     (needs matplotlib: pip install '.[bench]')

Enters: one reference of the demo, 12 perturbed ones, and a correct candidate. Leaves: draws.json
and docs/images/draws.svg. If the logarithm of a reading is normal from one perturbed run to the
next, the largest of n ratios is about exp(z(n) * spread * sqrt(1 + 1 / N)). That is with one spread
for all readings; where spreads differ, those with large ones make the largest ratios: those of an
optimizer's squares, which few elements carry (ttrace.analysis.tolerance.derived widens their
limits).
"""

from __future__ import annotations

import argparse
import json
import math
import statistics as stdlib_statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import NormalDist
from typing import Any

from studies.power.plots import IMAGES
from studies.power.runs import Model, SharedReferences, experiment, prepare
from ttrace.analysis.check import check
from ttrace.analysis.tolerance.factors import Factors
from ttrace.analysis.tolerance.yardstick import Key, Yardstick
from ttrace.core.ids import Kind, TensorId
from ttrace.core.results import CheckResult, TensorResult
from ttrace.core.statistics import Statistic, Statistics, readings

RUNS = 12
MOST = 8  # perturbed runs of which a mean is made
DTYPES = ("float32", "bfloat16")
SHOWN = (Statistic.NORM, Statistic.ROW, Statistic.SLICE, Statistic.ELEMENT)
_JUMP = (Kind.PARAM, Kind.PARAM_AFTER)  # what an update moves by one element is judged otherwise


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """One reading of one tensor: in every perturbed run, and in the candidate."""

    statistic: Statistic
    draws: tuple[float, ...]
    candidate: float


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m studies.power.draws", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("draws.json"))
    options = parser.parse_args()
    prepare()
    found: dict[str, Any] = {}
    for dtype in DTYPES:
        with tempfile.TemporaryDirectory() as name:
            found[dtype] = summary(list(drawn_of(dtype, Path(name))))
        options.out.write_text(json.dumps(found, indent=1) + "\n")
        print(dtype, json.dumps(found[dtype]), flush=True)
    draw(found)


def drawn_of(dtype: str, folder: Path) -> Iterator[Drawn]:
    """Whole runs: every perturbed one is compared with the reference as a candidate is."""
    model = Model(seed=1, dtype=dtype, layers=3, dim=64)
    asked = experiment(model, "split2", folder, SharedReferences(None))
    candidate = replace(asked, perturbed_runs=RUNS).compare()
    perturbed = [folder / f"perturbed-{seed}" for seed in range(1, RUNS + 1)]
    runs = [check(folder / "reference", run, perturbed=perturbed[:1]) for run in perturbed]
    statistics = [_statistics(run) for run in runs]
    for result in candidate.tensors:
        if result.statistics is not None and all(result.id in run for run in statistics):
            yield from readings_of(result, [run[result.id] for run in statistics])


def _statistics(run: CheckResult) -> dict[TensorId, Statistics]:
    return {r.id: r.statistics for r in run.tensors if r.statistics is not None}


def readings_of(candidate: TensorResult, noise: Sequence[Statistics]) -> Iterator[Drawn]:
    """Those of a tensor that many elements carry and that no run has exactly."""
    yardstick = Yardstick(
        dtype=candidate.dtype,
        volume=math.prod(candidate.shape),
        sequence=0,
        noise=tuple(noise),
    )
    if candidate.id.kind in _JUMP or yardstick.is_tiny or candidate.statistics is None:
        return
    found = [_values(each) for each in noise]
    of_candidate = _values(candidate.statistics)
    for key in found[0]:
        draws = tuple(values.get(key, 0.0) for values in found)
        if key[0] in SHOWN and min(draws) > 0:
            yield Drawn(statistic=key[0], draws=draws, candidate=of_candidate.get(key, 0.0))


def _values(found: Statistics) -> dict[Key, float]:
    return {reading.key: reading.value for reading in readings(found)}


def summary(drawn: Sequence[Drawn]) -> dict[str, dict[str, Any]]:
    """By statistic: what was measured, what theory says, and what TTrace allows, for N = 1 .. 8."""
    factors = Factors(judged=len(drawn))
    return {
        statistic.value: _summary([d for d in drawn if d.statistic is statistic])
        | {"factor": [factors.of(statistic, means) for means in range(1, MOST + 1)]}
        for statistic in SHOWN
    }


def _summary(drawn: Sequence[Drawn]) -> dict[str, Any]:
    comparisons = sum(len(d.draws) for d in drawn)
    variances = [stdlib_statistics.variance(map(math.log, d.draws)) for d in drawn]
    spread = math.sqrt(sum(variances) / len(variances))
    counts = range(1, MOST + 1)
    return {
        "readings": len(drawn),
        "spread": spread,
        "held out": [max(max(held_out(d.draws, count)) for d in drawn) for count in counts],
        "theory": [theory(comparisons, spread, count) for count in counts],
        "own spreads": [
            own_spreads(len(drawn[0].draws), list(map(math.sqrt, variances)), count)
            for count in counts
        ],
        "candidate": [
            max(d.candidate / mean for d in drawn for mean in means(d.draws, count))
            for count in counts
        ],
    }


def means(draws: Sequence[float], count: int) -> list[float]:
    """For every draw the geometric mean of the `count` that follow it, the first after the last."""
    logs = [math.log(draw) for draw in draws]
    return [
        math.exp(sum(logs[(place + step) % len(logs)] for step in range(1, count + 1)) / count)
        for place in range(len(logs))
    ]


def held_out(draws: Sequence[float], count: int) -> list[float]:
    """Every draw over the mean of `count` others."""
    return [draw / mean for draw, mean in zip(draws, means(draws, count), strict=True)]


def theory(comparisons: int, spread: float, count: int) -> float:
    """What one of so many ratios exceeds: one draw has the spread, its unit a share of it."""
    deviations = NormalDist().inv_cdf(1 - 1 / comparisons)
    return math.exp(deviations * spread * math.sqrt(1 + 1 / count))


def own_spreads(draws: int, spreads: Sequence[float], count: int) -> float:
    """The same where every reading has its own spread: the ratio that one is expected to exceed."""

    def exceeding(log_ratio: float) -> float:
        return draws * sum(
            1 - NormalDist(sigma=spread * math.sqrt(1 + 1 / count)).cdf(log_ratio)
            for spread in spreads
            if spread > 0  # the largest element may be off by one last place in every run
        )

    low, high = 0.0, 10 * max(spreads)  # ten standard deviations are never exceeded
    for _ in range(40):  # bisection to 1e-12 of that
        middle = (low + high) / 2
        low, high = (middle, high) if exceeding(middle) > 1 else (low, middle)
    return math.exp(high)


def draw(found: Mapping[str, Mapping[str, Any]]) -> None:
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "ttrace"  # the same file from the same numbers
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, len(SHOWN), figsize=(11, 3.9), sharey=True)
    counts = range(1, MOST + 1)
    for axis, statistic in zip(axes, SHOWN, strict=True):
        for color, (dtype, own) in zip(("C0", "C3"), found.items(), strict=True):
            lines = own[statistic.value]
            axis.plot(counts, lines["held out"], "o", color=color, label=f"{dtype} held out")
            axis.plot(counts, lines["theory"], "-", color=color, label=f"{dtype} theory")
            axis.plot(
                counts, lines["own spreads"], ":", color=color, label=f"{dtype} theory, own spreads"
            )
            axis.plot(counts, lines["candidate"], "x", color=color, label=f"{dtype} candidate")
        axis.plot(counts, lines["factor"], "--", color="black", label="TTrace's factor")
        axis.set_xticks(counts)
        axis.set(yscale="log", xlabel="perturbed runs", title=statistic.value)
        axis.set_yticks((1, 2, 3, 4, 6), ("1", "2", "3", "4", "6"))
        axis.minorticks_off()
    axes[0].set_ylabel("largest reading / mean of the runs")
    figure.legend(*axes[0].get_legend_handles_labels(), fontsize=7, loc="lower center", ncols=4)
    figure.tight_layout(rect=(0, 0.12, 1, 1))  # above the legend
    figure.savefig(IMAGES / "draws.svg", metadata={"Date": None})
    plt.close(figure)


if __name__ == "__main__":
    main()
