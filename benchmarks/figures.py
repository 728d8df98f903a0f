"""Figures: which numbers of the benchmarks are shown and watched, and when one has got worse.

    check.clean.check_vs_cat fell from 0.52 to 0.02

Enters: results, as the benchmarks return them. Leaves: their figures, and what got worse by more
than a third since it was recorded. It must not know how anything is measured or where it is kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from fnmatch import fnmatchcase

_LEFT = 2 / 3  # chosen: a shared machine moves ratios by 15%, so a third is no noise

Results = Mapping[str, object]


class Better(Enum):
    """Which way a figure should go."""

    HIGHER = "higher"
    LOWER = "lower"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One line of the table: a number, or the smallest and largest of several."""

    what: str
    pattern: str  # of keys of the results, such as generate.ratio.*_fp32
    better: Better
    target: float | None = None
    form: str = "{:.2f}"

    def values(self, results: Results) -> tuple[float, ...]:
        """In ascending order; empty where this was not measured."""
        found = _numbers(results)
        return tuple(sorted(v for key, v in found if fnmatchcase(key, self.pattern)))

    def worst(self, results: Results) -> float | None:
        values = self.values(results)
        if not values:
            return None
        return values[0] if self.better is Better.HIGHER else values[-1]

    def meets_target(self, results: Results) -> bool:
        """Whether all of its numbers do; so does one without a target."""
        worst = self.worst(results)
        if self.target is None or worst is None:
            return True
        is_higher = self.better is Better.HIGHER
        return worst >= self.target if is_higher else worst <= self.target

    def shown(self, results: Results) -> str:
        """0.85 to 1.00; empty where this was not measured."""
        values = self.values(results)
        ends = dict.fromkeys(self.form.format(value) for value in (*values[:1], *values[-1:]))
        return " to ".join(ends)


@dataclass(frozen=True, slots=True, kw_only=True)
class Regression:
    """A figure that got worse by more than a third."""

    figure: Figure
    before: float
    now: float

    def __str__(self) -> str:
        verb = "fell" if self.figure.better is Better.HIGHER else "rose"
        before, now = (self.figure.form.format(value) for value in (self.before, self.now))
        return f"{self.figure.pattern} {verb} from {before} to {now}"


FIGURES = (
    Figure(
        what="segment writer against raw `write()`, CPU time, xxh3 and journal included",
        pattern="storage.writer_vs_raw",
        better=Better.HIGHER,
        target=0.75,
    ),
    Figure(
        what="segment writer, times as fast as `torch.save` per tensor",
        pattern="storage.writer_vs_torch_save",
        better=Better.HIGHER,
        form="{:.1f}",
    ),
    Figure(
        what="fused pass over a bf16 pair against a plain read pass of one core",
        pattern="compare_pass.ratio.kernel_bf16",
        better=Better.HIGHER,
        target=0.5,
    ),
    Figure(
        what="the same, fp32",
        pattern="compare_pass.ratio.kernel_fp32",
        better=Better.HIGHER,
    ),
    Figure(
        what="the same without the compiled kernel, bf16 (may be slower)",
        pattern="compare_pass.ratio.fallback_bf16",
        better=Better.HIGHER,
    ),
    Figure(
        what="all statistics with their places, in times of a plain loop for the norms alone, rows "
        "of 64 to 131,072: fp32",
        pattern="compare_pass.fused_vs_norm_only.fp32.plain.*",
        better=Better.LOWER,
        target=1.5,
    ),
    Figure(
        what="the same, bf16",
        pattern="compare_pass.fused_vs_norm_only.bf16.plain.*",
        better=Better.LOWER,
        target=1.5,
    ),
    Figure(
        what="the same in times of a loop for the norms that is written by hand and reads ahead: "
        "fp32",
        pattern="compare_pass.fused_vs_norm_only.fp32.norm.*",
        better=Better.LOWER,
    ),
    Figure(
        what="the same, bf16",
        pattern="compare_pass.fused_vs_norm_only.bf16.norm.*",
        better=Better.LOWER,
    ),
    Figure(
        what="`ttrace.generate_parameters` of a shard in times of `normal_()`, one core: fp32, by "
        "layout",
        pattern="generate.ratio.*_fp32",
        better=Better.LOWER,
        target=2.0,
    ),
    Figure(
        what="the same, bf16",
        pattern="generate.ratio.*_bf16",
        better=Better.LOWER,
        target=2.0,
    ),
    Figure(
        what="clean `ttrace check` of a 4 GB tensor against `cat` of the same files, CPU time of "
        "one core, warm cache",
        pattern="check.clean.check_vs_cat",
        better=Better.HIGHER,
        target=0.35,
    ),
    Figure(
        what="the same with 20 failing tensors of 200 MB, each of which is looked at closely",
        pattern="check.failing.check_vs_cat",
        better=Better.HIGHER,
        target=0.175,
    ),
    Figure(
        what="peak memory of the clean check over `import torch`, MB",
        pattern="check.clean.peak_mb_over_torch",
        better=Better.LOWER,
        target=60.0,
        form="{:.0f}",
    ),
    Figure(
        what="the same with failing tensors, one of them diagnosed whole, MB",
        pattern="check.failing.peak_mb_over_torch",
        better=Better.LOWER,
        target=60.0,
        form="{:.0f}",
    ),
    Figure(
        what="step with TTrace attached but off, in times of a step without it",
        pattern="capture.off_vs_plain",
        better=Better.LOWER,
        target=1.1,
    ),
    Figure(
        what="hooks that are installed when it is off",
        pattern="capture.hooks_installed_when_off",
        better=Better.LOWER,
        target=0.0,
        form="{:.0f}",
    ),
    Figure(
        what="step with every tensor recorded, in times of one with recording off",
        pattern="capture.on_vs_off",
        better=Better.LOWER,
    ),
)


def regressions(recorded: Results, measured: Results) -> tuple[Regression, ...]:
    """What was measured in both, and is worse by more than a third now."""
    found = []
    for figure in FIGURES:
        before, now = figure.worst(recorded), figure.worst(measured)
        if before is not None and now is not None and _is_worse(figure.better, before, now):
            found.append(Regression(figure=figure, before=before, now=now))
    return tuple(found)


def _is_worse(better: Better, before: float, now: float) -> bool:
    return now < before * _LEFT if better is Better.HIGHER else now * _LEFT > before


def _numbers(results: object, key: str = "") -> Iterator[tuple[str, float]]:
    """Nested results as pairs such as ("storage.writer_vs_raw", 0.81)."""
    if isinstance(results, Mapping):
        for name, value in results.items():
            yield from _numbers(value, f"{key}.{name}" if key else str(name))
    elif isinstance(results, (int, float)):
        yield key, float(results)
