"""The last lines of a gate: its ten slowest files, with what was expected of them, and its total.

    python -m tests.tiers.closing begin     forgets what earlier runs measured
    python -m tests.tiers.closing SECONDS   prints the lines of all runs since then

Several runs of pytest make one gate, so what each measured waits in a file.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.tiers.records import file_of

_MEASURED = Path(__file__).parents[2] / "build" / "tiers" / "measured.json"
_FILES = 10
_WARN_SECONDS = 40 * 60  # ten minutes above what a gate is to take


def add(measured: Mapping[str, float], expected: Mapping[str, float]) -> None:
    """Keep what a run measured of each file, beside what was recorded of the same tests."""
    files = _read()
    for id_, seconds in measured.items():
        before = files.get(file_of(id_), (0.0, 0.0))
        files[file_of(id_)] = (before[0] + seconds, before[1] + expected.get(id_, 0.0))
    _MEASURED.parent.mkdir(parents=True, exist_ok=True)
    _MEASURED.write_text(json.dumps(files))


def slowest() -> Iterator[str]:
    """A line for each of the files that took the most CPU time."""
    files = sorted(_read().items(), key=lambda each: -each[1][0])
    yield f"CPU time {sum(took for _, (took, _) in files):.0f} s; the slowest files:"
    for name, (took, expected) in files[:_FILES]:
        yield f"{took:7.1f} s, expected {expected:6.1f}  {name}"


def total(seconds: float) -> Iterator[str]:
    """What the whole gate took; a slow machine never fails a change, so this warns only."""
    yield f"the gate took {seconds / 60:.1f} minutes"
    if seconds > _WARN_SECONDS:
        yield f"WARNING: that is more than {_WARN_SECONDS // 60}: a slow machine, or a slow change?"


def _read() -> dict[str, tuple[float, float]]:
    if not _MEASURED.exists():
        return {}
    return {
        name: (took, expected)
        for name, (took, expected) in json.loads(_MEASURED.read_text()).items()
    }


def main(words: list[str]) -> None:
    if words == ["begin"]:
        _MEASURED.unlink(missing_ok=True)
        return
    print(*slowest(), *total(float(words[0])), sep="\n")


if __name__ == "__main__":
    main(sys.argv[1:])
