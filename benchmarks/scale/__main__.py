"""Checks of large traces, part by part.

    $ python -m benchmarks.scale                    all parts
    $ python -m benchmarks.scale engines killed     these
    $ python -m benchmarks.scale cores real         on a machine of 16 cores; nothing is installed
    $ python -m benchmarks.scale cores real --small the same, to see that it works: no page changes

Every part is a function that measures and returns a table, which replaces the one of its name in
docs/reference/scale.md. To add a part, write the function, name it in PARTS, and put the two
comments with its name and the end into the page.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from benchmarks.power.table import replaced
from benchmarks.record import processor
from benchmarks.scale import real as real_runs
from benchmarks.scale.cores import Size, cores
from benchmarks.scale.engines import engines
from benchmarks.scale.killed import killed
from benchmarks.scale.on_ray import on_ray
from benchmarks.scale.ranks import ranks

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "scale.md"
PARTS: Mapping[str, Callable[[], str]] = {
    "engines": engines,
    "killed": killed,
    "ray": on_ray,
    "ranks": ranks,
    "cores": cores,
    "real": real_runs.real,
}
SMALL: Mapping[str, Callable[[], str]] = {
    "cores": partial(cores, Size(tensors=4, perturbed=2)),
    "real": partial(real_runs.real, real_runs.SMALL),
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=__doc__)
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(PARTS)}; all without any")
    parser.add_argument("--dry", action="store_true", help="print tables, and leave the page")
    parser.add_argument("--small", action="store_true", help="small numbers, and leave the page")
    options = parser.parse_args()
    parts = SMALL if options.small else PARTS
    unknown = set(options.parts) - set(parts)
    if unknown:
        parser.error(
            f"no part is called {', '.join(sorted(unknown))}: there are {', '.join(parts)}"
        )
    tables = {}
    for name in options.parts or parts:
        tables[name] = f"Measured on {processor()}.\n\n{parts[name]()}"
        if not (options.dry or options.small):
            PAGE.write_text(replaced(PAGE.read_text(), name, tables[name]))
    for name, table in tables.items():
        print(f"<!-- {name} -->\n\n{table}\n\n<!-- end -->\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
