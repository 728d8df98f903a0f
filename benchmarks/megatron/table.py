"""The tables of docs/reference/megatron.md, from what `python -m benchmarks.megatron` has found.

$ python -m benchmarks.megatron.table
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).parents[2]
JSON = _ROOT / "benchmarks" / "megatron.json"
PAGE = _ROOT / "docs" / "reference" / "megatron.md"
_SHOWN = 2  # places of a row

Entry = dict[str, Any]


def main() -> None:
    found = json.loads(JSON.read_text())
    bugs: dict[str, Entry] = found["bugs"]
    paper = {name: entry for name, entry in bugs.items() if entry.get("in_paper")}
    further = {name: entry for name, entry in bugs.items() if not entry.get("in_paper")}
    tables = {
        "layouts": layout_rows(found["layouts"]),
        "bugs": bug_rows(paper),
        "further bugs": bug_rows(further),
        "together": together(found["layouts"], bugs),
    }
    text = PAGE.read_text()
    for title, rows in tables.items():
        head, mark, rest = text.partition(f"<!-- {title} -->\n")
        assert mark, f"{PAGE} has no place for {title}"
        _, _, tail = rest.partition("<!-- end -->\n")
        text = f"{head}{mark}" + "\n".join(rows) + f"\n<!-- end -->\n{tail}"
    PAGE.write_text(text)


def layout_rows(entries: dict[str, Entry]) -> Iterator[str]:
    yield "| layout | dtype | verdict | tensors | recorded | error / tolerance | s |"
    yield "|---|---|---|---|---|---|---|"
    for title, entry in entries.items():
        name, _, dtype = title.rpartition(" ")
        if "error" in entry:
            yield f"| {name} | {dtype} | not run: {_last(entry['error'])} | | | | |"
            continue
        yield (
            f"| {name} | {dtype} | {verdict(entry)} | {entry['tensors']} "
            f"| {100 * entry['judged'] / entry['tensors']:.1f}% | {float(entry['largest']):.2f} "
            f"| {entry['seconds']:.0f} |"
        )


def bug_rows(entries: dict[str, Entry]) -> Iterator[str]:
    yield "| bug | from | layout | found | named | as it should | error / tolerance | twin | s |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for name, entry in entries.items():
        if "error" in entry:
            yield f"| {name} | | | not run: {_last(entry['error'])} | | | | | |"
            continue
        wrong = entry["bug"]
        yield (
            f"| {name} | {entry['source']} | {entry['layout']} | {_yes(found(entry))} "
            f"| {named(entry)} | {_yes(exact(entry))} "
            f"| {float(wrong['evidence']):.3g} | {silent(entry['twin'])} | {wrong['seconds']:.0f} |"
        )


def together(layouts: dict[str, Entry], bugs: dict[str, Entry]) -> Iterator[str]:
    ran = [entry for entry in bugs.values() if "error" not in entry]
    alike = sum("error" not in e and e["exit_code"] == 0 for e in layouts.values())
    yield (
        f"{alike} of {len(layouts)} layouts are equivalent. {sum(map(found, ran))} of {len(bugs)} "
        f"bugs are found, {sum(map(exact, ran))} named as they should; "
        f"{sum(silent(e['twin']) == 'silent' for e in ran)} of {len(bugs)} twins are silent."
    )


def named(entry: Entry) -> str:
    places = entry["bug"]["named"] or ["nothing"]
    more = f" and {len(places) - _SHOWN} more" if len(places) > _SHOWN else ""
    return "; ".join(places[:_SHOWN]) + more


def found(entry: Entry) -> bool:
    return bool(entry["bug"]["exit_code"] == 1)


def exact(entry: Entry) -> bool:
    """All that is itself wrong is named, and nothing else."""
    return bool(entry["is_exact"])


def verdict(entry: Entry) -> str:
    return ("equivalent", "ALARM", "undecided")[entry["exit_code"]]


def silent(twin: Entry) -> str:
    """Of a correct twin, compared and then isolated."""
    codes = (twin["exit_code"], twin["isolated_exit_code"])
    return "silent" if codes == (0, 0) else f"exit {codes[0]}, isolated {codes[1]}"


def _last(error: str) -> str:
    return error.strip().splitlines()[-1]


def _yes(value: bool) -> str:  # noqa: FBT001
    return "yes" if value else "no"


if __name__ == "__main__":
    main()
