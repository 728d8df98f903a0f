"""The page docs/reference/yardsticks.md, from what `python -m studies.yardsticks` measured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from studies.clean.slopes import Point, slope_of
from studies.yardsticks.kinds import YARDSTICKS
from studies.yardsticks.ratios import DTYPES, Measured, Ratio
from studies.yardsticks.subjects import FUSED, WRITTEN

_HEAD = """# Yardsticks side by side

Written by `python -m studies.yardsticks`. A tolerance needs a yardstick: something that is off
from the reference by as much as a correct other layout is. Here several are compared on small
models. The candidate is the same step in 2 and in 4 data-parallel parts, whose gradients are added.
The ratio is

    |candidate - reference| / max(|yardstick - reference|, eps |reference|)

the largest over the gradients of all parameters, both candidates and 3 seeds (of model, batch and
noise). Ideal is about 1 at every size: above it a correct run is further off than the yardstick
says, far below it errors hide, and a ratio that grows with size has no factor that fits. TTrace
multiplies its yardstick by [a factor](../explanation/tolerances.md).
"""

_BATCH_NORM = """Where BatchNorm trains, samples depend on each other. A yardstick that splits the
batch would compute something else (n/a). The parts of the candidate exchange their sums, as
synchronised BatchNorm does, with mean and variance written out. "Written-out" has the same
operators in the reference, so that only the layout differs; "fused" has torch's own BatchNorm there
and compares another kernel as well, which is more than another layout.
"""


def page(found: Sequence[Measured]) -> str:
    parts = [_HEAD, "\n".join(_needs()) + "\n"]
    for dtype in DTYPES:
        own = [each for each in found if each.dtype == dtype]
        parts.append(f"## {dtype}\n\nNorm / largest element.\n\n" + "\n".join(_table(own)) + "\n")
    parts.append(_BATCH_NORM)
    parts += ["## Together\n\n" + _TOGETHER, *_sections(found)]
    versions = f"torch {torch.__version__}, one thread; oneDNN computes in fp32 only"
    parts.append(f"Measured with {versions}.\n")
    return "\n".join(parts)


def _needs() -> Iterator[str]:
    yield "| yardstick | what it is | of samples it asks | of the user |"
    yield "|---|---|---|---|"
    for each in YARDSTICKS:
        yield f"| {each.name} | {each.what} | {each.samples} | {each.help} |"


def _table(found: Sequence[Measured]) -> Iterator[str]:
    yield "| model | " + " | ".join(each.name for each in YARDSTICKS) + " |"
    yield "|---" * (len(YARDSTICKS) + 1) + "|"
    for line in found:
        cells = (_cell(line.ratios[each.name]) for each in YARDSTICKS)
        yield f"| {line.case.name} | " + " | ".join(cells) + " |"


def _cell(ratio: Ratio | None) -> str:
    return "n/a" if ratio is None else f"{_number(ratio.norm)} / {_number(ratio.element)}"


def _number(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:.0f}"  # 10: chosen


_TOGETHER = """The ratios of norms from the smallest to the largest, and the slope of their
logarithm against that of the rows, with a level for each model, and its standard error: 0 is flat,
0.5 grows as a square root.
"""


def _sections(found: Sequence[Measured]) -> Iterator[str]:
    """Apart, since only the first has ratios of all, and the last is more than a layout."""
    for title, own in (
        ("samples are independent", [each for each in found if each.case.independent]),
        ("BatchNorm trains", [each for each in found if each.case.family == WRITTEN]),
        ("the kernel differs as well", [each for each in found if each.case.family == FUSED]),
    ):
        if own:
            yield f"**Where {title}**\n\n" + "\n".join(_together(own)) + "\n"


def _together(found: Sequence[Measured]) -> Iterator[str]:
    yield "| yardstick | " + " | ".join(f"{d} | {d} slope" for d in DTYPES) + " |"
    yield "|---" * (2 * len(DTYPES) + 1) + "|"
    for each in YARDSTICKS:
        cells = []
        for dtype in DTYPES:
            points = _points(found, dtype, each.name)
            ratios = [point.ratio for point in points]
            cells.append(f"{_number(min(ratios))} to {_number(max(ratios))}" if ratios else "n/a")
            cells.append(str(slope_of(points) or ""))
        yield f"| {each.name} | " + " | ".join(cells) + " |"


def _points(found: Sequence[Measured], dtype: str, yardstick: str) -> list[Point]:
    own = [(each.case, each.ratios[yardstick]) for each in found if each.dtype == dtype]
    return [
        Point(series=case.family, size=case.rows, ratio=ratio.norm)
        for case, ratio in own
        if ratio is not None and ratio.norm > 0
    ]
