"""The page docs/reference/clean.md, from what `python -m studies.clean` has found.

$ python -m studies.clean.table [FILE ...]      (clean.json where none is named)
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from studies.clean.check import Check, read_checks
from studies.clean.design import DTYPES, design
from studies.clean.slopes import SIZES, points_of, slope_of
from zoo.clean.case import Case

ROOT = Path(__file__).parents[2]
JSON = Path(__file__).with_name("clean.json")
PAGE = ROOT / "docs" / "reference" / "clean.md"
NEAR = 0.8  # above it a run is listed by name: chosen
_MANY_ROWS = 4096  # chosen: below, sums are so short that the noise of values exceeds theirs

_HEAD = """# Correct runs

Written by `python -m studies.clean.table`. Every run is correct: a model of `zoo/clean` on one
process, and the same training step in another layout on real gloo ranks, which in fp64 do the same
(`python -m studies.clean.verify`). Each is compared plain and isolated, as `ttrace diff` does it
by default: with one perturbed reference, and with four more where the first comparison is within
2/3 and 5 times a tolerance. An alarm is a tensor that failed or was undecided; every alarm
here is a false one. The ratio is the largest error of any tensor over its tolerance: above 1 is an
alarm. In brackets: how many of the checks are above 1.

The grid is in `studies/clean/design.py`, all numbers in `studies/clean/clean.json`. A key is
group / architecture / precision / layout / optimizer / samples x positions / width / depth / seed,
then `mkldnn` where that computes.
"""

Keyed = Callable[[Check, Case], Iterable[tuple[str, float]]]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m studies.clean.table", description=__doc__)
    parser.add_argument("files", nargs="*", type=Path, default=[JSON], metavar="FILE")
    found = [check for file in parser.parse_args(arguments).files for check in read_checks(file)]
    PAGE.write_text(page(found))


def page(checks: Sequence[Check]) -> str:
    parts = [_HEAD]
    for device in dict.fromkeys(check.case.device for check in checks):
        own = [check for check in checks if check.case.device == device]
        if device != "cpu":
            parts.append(f"# On {device}\n")
        parts += [_together(own, device), *_sections(own)]
        if device == "cpu":
            parts.append("![largest ratio against rows](../images/clean-rows.svg)\n")
        parts.append(_listed(own))
    return "\n".join(parts)


def _together(checks: Sequence[Check], device: str) -> str:
    cases = {check.key: check.case for check in checks}
    planned = {case.key for case in design(device)}
    largest = max(checks, key=lambda check: check.largest)
    rows = [
        ("cases run, of those in the grid", f"{len(planned & cases.keys())} of {len(planned)}"),
        ("checks (plain, isolated)", f"{len(checks)}"),
        ("tensors judged", f"{sum(check.tensors for check in checks):,}"),
        ("**checks with an alarm**", f"**{sum(check.alarms > 0 for check in checks)}**"),
        ("largest ratio", f"{_number(largest.largest)}: `{largest.key}` `{largest.largest_id}`"),
        ("architectures", f"{len({case.architecture for case in cases.values()})}"),
        ("rows", _range(case.rows for case in cases.values())),
        ("widths", _range(case.width for case in cases.values())),
        ("depths", _range(case.depth for case in cases.values())),
        ("torch", _counted(check.torch for check in checks)),
        ("TTrace, by a fingerprint of its sources", _counted(check.tool for check in checks)),
    ]
    return "\n".join(["| | |", "|---|---|", *(f"| {a} | {b} |" for a, b in rows)]) + "\n"


def _sections(checks: Sequence[Check]) -> Iterator[str]:
    for title, keyed in (
        ("architecture", lambda check, case: [(case.architecture, check.largest)]),
        ("layout", lambda check, case: [(case.layout, check.largest)]),
        ("optimizer", lambda check, case: [(case.optimizer, check.largest)]),
        ("statistic", lambda check, case: check.by_statistic.items()),
        ("kind of tensor", lambda check, case: check.by_kind.items()),
    ):
        yield f"## By {title}\n\n{_by(title, keyed, checks)}\n"
    swept = [sweep for sweep in SIZES if any(check.case.group == sweep for check in checks)]
    if swept:
        yield f"## Slopes\n\n{_SLOPES}\n"
    for sweep in swept:
        yield f"**{sweep}**\n\n{_slopes(checks, sweep)}\n"


def _by(title: str, keyed: Keyed, checks: Sequence[Check]) -> str:
    """The largest ratio, and in brackets how many of the checks that have one are above 1."""
    cells: dict[str, dict[tuple[str, bool], list[float]]] = {}
    for check in checks:
        case = check.case
        for name, ratio in keyed(check, case):
            cells.setdefault(name, {}).setdefault((case.dtype, check.isolated), []).append(ratio)
    columns = [(dtype, isolated) for dtype in DTYPES for isolated in (False, True)]
    lines = [
        f"| {title} | " + " | ".join(f"{d} {_mode(isolated=i)}" for d, i in columns) + " |",
        "|---" * (len(columns) + 1) + "|",
    ]
    lines += [
        f"| {name} | " + " | ".join(_cell(row.get(column, [])) for column in columns) + " |"
        for name, row in sorted(cells.items())
    ]
    return "\n".join(lines)


def _cell(ratios: Sequence[float]) -> str:
    if not ratios:
        return ""
    above = sum(ratio > 1 for ratio in ratios)
    return _number(max(ratios)) + (f" ({above} of {len(ratios)})" if above else "")


_SLOPES = """Of log(largest ratio) against log(size), by least squares, with standard errors: 0
where a tolerance grows as the error does. Only one size varies in a sweep; the last line has one
slope for all architectures, and a level for each."""


def _slopes(checks: Sequence[Check], sweep: str) -> str:
    swept = {
        (dtype, isolated): points_of(
            [c for c in checks if c.isolated == isolated and c.case.dtype == dtype], sweep
        )
        for dtype in ("fp32", "bf16")
        for isolated in (False, True)
    }
    names = sorted({point.series for points in swept.values() for point in points})
    lines = [
        f"| {sweep} | " + " | ".join(f"{d} {_mode(isolated=i)}" for d, i in swept) + " |",
        "|---" * (len(swept) + 1) + "|",
    ]
    for name in names:
        found = [slope_of([p for p in points if p.series == name]) for points in swept.values()]
        lines.append(f"| {name} | " + " | ".join(str(each or "") for each in found) + " |")
    together = {"all": [slope_of(points) for points in swept.values()]}
    if sweep == "rows":
        together[f"all, from {_MANY_ROWS:,} rows"] = [
            slope_of([p for p in points if p.size >= _MANY_ROWS]) for points in swept.values()
        ]
    for name, slopes in together.items():
        lines.append(f"| {name} | " + " | ".join(str(each or "") for each in slopes) + " |")
    return "\n".join(lines)


def _listed(checks: Sequence[Check]) -> str:
    near = [check for check in checks if check.alarms or check.largest > NEAR]
    title = f"## Runs with an alarm or a ratio above {NEAR}\n\n"
    if not near:
        return f"{title}None.\n"
    lines = ["| run | | ratio | alarms | tensor |", "|---|---|---|---|---|"]
    lines += [
        f"| `{check.key}` | {_mode(isolated=check.isolated)} | {_number(check.largest)} "
        f"| {check.alarms or ''} | `{check.largest_id}` |"
        for check in sorted(near, key=lambda check: -check.largest)
    ]
    return title + "\n".join(lines) + "\n"


def _mode(*, isolated: bool) -> str:
    return "isolated" if isolated else "plain"


def _number(ratio: float) -> str:
    return f"{ratio:.2f}" if ratio < 100 else f"{ratio:.3g}"  # 100: chosen


def _counted(versions: Iterable[str]) -> str:
    return ", ".join(f"{name} ({count} checks)" for name, count in Counter(versions).items())


def _range(values: Iterable[int]) -> str:
    found = sorted(set(values))
    return f"{found[0]:,} to {found[-1]:,}"


if __name__ == "__main__":
    main()
