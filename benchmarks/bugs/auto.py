"""Tries all bugs with values and with fingerprints first, and writes docs/reference/bugs-auto.md.

$ python -m benchmarks.bugs.auto [NAME ...]   (with names: those bugs, and the page is not written)
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.bugs.__main__ import ROOT, pool_of
from ttrace.lab.captured import Capture
from ttrace.report.wording import place
from zoo.bug import Bug, Family
from zoo.registry import bugs
from zoo.trials import Trial, Trials

PAGE = ROOT / "docs" / "reference" / "bugs-auto.md"
# Chosen: models of the zoo are tiny. A tensor of 1,024 bytes then has a fingerprint.
FEWEST_SUMS = 64

_HEAD = """# The same bugs by fingerprints

Written by `make bench-bugs-auto`. Every bug of [the list](bugs.md) was tried twice: with
`--capture full`, and with `--capture auto`, where runs record fingerprints, and isolated ones the
values of suspected blocks. The models are tiny, so fingerprints keep as few as {sums} sums, and
blocks are most of the model: what fingerprints save shows with `make bench-gpu`, not here.

Same: whether both name the same places. Twin: whether the correct twin is silent in auto, in the
plain comparison and in the isolated one. Bytes: of all tensors that all runs of a bug recorded.

"""
_COLUMNS = (
    *("bug", "named by auto", "same", "twin", "plain, full", "plain, auto"),
    *("bytes, full", "bytes, auto", "seconds, full", "seconds, auto"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One bug, both ways."""

    bug: Bug
    full: Trial
    auto: Trial
    twin: Trial

    @property
    def is_same(self) -> bool:
        return set(self.full.named) == set(self.auto.named)

    def line(self) -> str:
        places = [place(culprit) for culprit in self.auto.culprits] or ["nothing"]
        plain = [
            ("passes", "found", "undecided")[t.plain.exit_code] for t in (self.full, self.auto)
        ]
        cells = (
            f"`{self.bug.name}`",
            "; ".join(places[:3]),
            "yes" if self.is_same else "NO",
            "silent" if self.twin.is_silent else "ALARM",
            *plain,
            *(f"{t.size_bytes:,}" for t in (self.full, self.auto)),
            *(f"{t.seconds:.1f}" for t in (self.full, self.auto)),
        )
        return f"| {' | '.join(cells)} |"


def main(arguments: Sequence[str] | None = None) -> int:
    """0 when fingerprints name the same places everywhere and every twin is silent."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bugs.auto", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME")
    names = parser.parse_args(arguments).names
    listed = [*bugs(Family.NATIVE), *bugs(Family.DEMO)]
    chosen = [bug for bug in listed if not names or bug.name in names]
    pool = pool_of(max((bug.ranks for bug in chosen), default=1))
    rows = []
    try:
        with tempfile.TemporaryDirectory() as folder:
            full = Trials(pool, Path(folder))
            auto = Trials(pool, Path(folder), capture=Capture.AUTO, fewest_sums=FEWEST_SUMS)
            for bug in chosen:
                row = Row(bug=bug, full=full.bug(bug), auto=auto.bug(bug), twin=auto.twin(bug))
                rows.append(row)
                print(row.line(), flush=True)
    finally:
        pool.close()
    same, silent = sum(row.is_same for row in rows), sum(row.twin.is_silent for row in rows)
    told = f"The same places: {same} of {len(rows)}. Silent twins: {silent} of {len(rows)}."
    print(told)
    if not names:
        head = f"| {' | '.join(_COLUMNS)} |\n{'|---' * len(_COLUMNS)}|\n"
        lines = "\n".join(row.line() for row in rows)
        PAGE.write_text(f"{_HEAD.format(sums=FEWEST_SUMS)}{head}{lines}\n\n{told}\n")
    return 0 if same == silent == len(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
