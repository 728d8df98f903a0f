"""Reads and writes recorded.json: what every flow cost and what occurred in it, when it last ran.

    {"unmarked": 98.1,
     "facets": ["adapter:native", "finding:beyond tolerance", ...],
     "flows": {"tests/bugs/test_glue.py::test_correct_twin_passes": [3.1, "0 4 17"], ...}}

Facets stand by their numbers, a flow a line, so that a change of one flow is a change of one line.
`make test-record` writes it; nobody edits it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.tiers.selection import Flow

RECORDED = Path(__file__).parent / "recorded.json"
PINNED = Path(__file__).parent / "pinned.txt"
_LEAST_SECONDS = 0.1  # chosen: below, a measurement is noise


@dataclass(frozen=True, slots=True)
class Recorded:
    """All flows that were recorded, and the CPU seconds of all other tests together."""

    flows: tuple[Flow, ...] = ()
    unmarked_seconds: float = 0.0


def read_recorded(path: Path = RECORDED) -> Recorded:
    """What was recorded; nothing where nothing was."""
    if not path.exists():
        return Recorded()
    data = json.loads(path.read_text())
    names = data["facets"]
    return Recorded(
        tuple(
            Flow(id_, seconds, frozenset(names[int(n)] for n in numbers.split()))
            for id_, (seconds, numbers) in data["flows"].items()
        ),
        data["unmarked"],
    )


def write_recorded(recorded: Recorded, path: Path = RECORDED) -> None:
    """Sorted, so that the same flows give the same text."""
    names = sorted({facet for flow in recorded.flows for facet in flow.facets})
    number = {name: n for n, name in enumerate(names)}
    flows = ",\n".join(
        f" {json.dumps(flow.id)}: "
        f"[{round(max(flow.seconds, _LEAST_SECONDS), 1)}, "
        f'"{" ".join(map(str, sorted(number[facet] for facet in flow.facets)))}"]'
        for flow in sorted(recorded.flows, key=lambda flow: flow.id)
    )
    facets = ",\n".join(f" {json.dumps(name)}" for name in names)
    path.write_text(
        f'{{"unmarked": {round(recorded.unmarked_seconds, 1)},\n'
        f'"facets": [\n{facets}\n],\n"flows": {{\n{flows}\n}}}}\n'
    )


def read_pinned(path: Path = PINNED) -> dict[str, str]:
    """Ids of flows that run in every gate, and why: `ID  # reason` a line."""
    lines = [line for line in path.read_text().splitlines() if line and line[0] != "#"]
    return {id_.strip(): why.strip() for id_, _, why in (line.partition("  # ") for line in lines)}


def file_of(id_: str) -> str:
    """The file of a node id."""
    return id_.partition("::")[0]


def seconds_by_file(flows: Iterable[Flow]) -> dict[str, float]:
    """What the flows of each file cost together."""
    seconds: dict[str, float] = {}
    for flow in flows:
        seconds[file_of(flow.id)] = seconds.get(file_of(flow.id), 0.0) + flow.seconds
    return seconds
