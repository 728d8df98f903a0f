"""Checks of large traces, part by part.

    $ python -m benchmarks.scale                    all parts
    $ python -m benchmarks.scale engines killed     these

Every part is a function that measures and returns a table, which replaces the one of its name in
docs/reference/scale.md. To add a part, write the function, name it in PARTS, and put the two
comments with its name and the end into the page.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from benchmarks.pages import replaced
from benchmarks.record import processor
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
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=__doc__)
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(PARTS)}; all without any")
    parser.add_argument("--dry", action="store_true", help="print tables, and leave the page")
    options = parser.parse_args()
    unknown = set(options.parts) - set(PARTS)
    if unknown:
        parser.error(
            f"no part is called {', '.join(sorted(unknown))}: there are {', '.join(PARTS)}"
        )
    tables = {}
    for name in options.parts or PARTS:
        tables[name] = f"Measured on {processor()}.\n\n{PARTS[name]()}"
        if not options.dry:
            PAGE.write_text(replaced(PAGE.read_text(), name, tables[name]))
    for name, table in tables.items():
        print(f"<!-- {name} -->\n\n{table}\n\n<!-- end -->\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
