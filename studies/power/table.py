"""The tables of docs/reference/power.md, from power.json and, of the version before, before.json.

$ python -m studies.power.table

before.json has what commit d9bd8d7 finds, before sums were regrouped, by the same sweep.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from benchmarks.pages import replaced
from studies.power.clean import CleanRun

FOLDER = Path(__file__).parent
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "power.md"
_METHODS = {"ours": "plain", "ours, isolated": "isolated"}
_STATISTICS = ("norm", "row", "slice", "element", "gain", "shift")

Sizes = Mapping[str, Mapping[str, Mapping[str, Mapping[str, float]]]]  # rows, dtype, error, method


def main() -> None:
    power = json.loads((FOLDER / "power.json").read_text())
    before = json.loads((FOLDER / "before.json").read_text())
    runs = [CleanRun(**run) for run in power["runs"]]
    tables = {
        "clean": "\n".join(clean(runs)),
        "found": "\n".join(found(power["detectable_at_95_percent"])),
        "before": "\n".join(beside(power["detectable_at_95_percent"], before)),
    }
    text = PAGE.read_text()
    for name, table in tables.items():
        text = replaced(text, name, table)
    PAGE.write_text(text)


def clean(runs: list[CleanRun]) -> Iterator[str]:
    """The largest ratio of every statistic on clean runs."""
    alarms = sum(run.alarms > 0 for run in runs)
    yield f"**{alarms} of {len(runs)}** checks raised an alarm. The largest ratios:\n"
    modes = [(dtype, isolated) for isolated in (False, True) for dtype in ("float32", "bfloat16")]
    names = [f"{'isolated' if isolated else 'plain'} {dtype}" for dtype, isolated in modes]
    yield f"| statistic | {' | '.join(names)} |"
    yield "|---|" + "---|" * len(modes)
    for statistic in _STATISTICS:
        cells = [
            max(
                (
                    run.by_statistic.get(statistic, 0.0)
                    for run in runs
                    if (run.dtype, run.isolated) == mode
                ),
                default=0.0,
            )
            for mode in modes
        ]
        yield f"| {statistic} | {' | '.join(f'{cell:.2f}' for cell in cells)} |"


def found(sizes: Sizes) -> Iterator[str]:
    """By every method, at the fewest rows."""
    for dtype, kinds in next(iter(sizes.values())).items():
        methods = list(next(iter(kinds.values())))
        yield f"**{dtype}**\n"
        yield f"| error | {' | '.join(map(_title, methods))} |"
        yield "|---|" + "---|" * len(methods)
        for kind, by_method in kinds.items():
            yield f"| {kind} | {' | '.join(f'{by_method[m]:.2g}' for m in methods)} |"
        yield ""


def _title(method: str) -> str:
    return method.replace("ours", "TTrace")


def beside(now: Sizes, before: Sizes) -> Iterator[str]:
    """TTrace now and before."""
    columns = [f"{title}, {when}" for title in _METHODS.values() for when in ("before", "now")]
    yield f"| rows | dtype | error | {' | '.join(columns)} |"
    yield "|---|---|---|" + "---|" * len(columns)
    for rows, dtypes in now.items():
        for dtype, kinds in dtypes.items():
            for kind, by_method in kinds.items():
                cells = [
                    f"{value:.2g}"
                    for method in _METHODS
                    for value in (before[rows][dtype][kind][method], by_method[method])
                ]
                yield f"| {int(rows):,} | {dtype} | {kind} | {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
