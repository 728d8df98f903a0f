"""Two tables of docs/reference/scale.md, measured on a machine of 16 cores; nothing is installed.

$ PYTHONPATH=src:. python -m studies.cores            both tables, into the page
$ PYTHONPATH=src:. python -m studies.cores --small    small numbers, and the page is left
"""

from __future__ import annotations

import argparse

from benchmarks.pages import replaced
from benchmarks.record import processor
from benchmarks.scale.__main__ import PAGE
from studies.cores import real
from studies.cores.speed import Size, cores


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m studies.cores", description=__doc__)
    parser.add_argument("--small", action="store_true", help="small numbers, and leave the page")
    small = parser.parse_args().small
    tables = {
        "cores": cores(Size(tensors=4, perturbed=2) if small else Size()),
        "real": real.real(real.SMALL if small else real.CASES),
    }
    for name, table in tables.items():
        text = f"Measured on {processor()}.\n\n{table}"
        print(f"<!-- {name} -->\n\n{text}\n\n<!-- end -->\n")
        if not small:
            PAGE.write_text(replaced(PAGE.read_text(), name, text))


if __name__ == "__main__":
    main()
