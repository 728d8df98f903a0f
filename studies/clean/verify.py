"""Are the programs themselves right? Candidate against reference in fp64, without TTrace.

    $ python -m studies.clean.verify --only first-contact
    first-contact/lstm/fp64/ddp2/...: 1.1e-15 head.weight gradient

What the difference is, and how large it may be, is in zoo/clean/verify.py.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence

from studies.clean.design import design
from studies.clean.job import prepare
from zoo.clean.verify import LIMIT, as_fp64, differences
from zoo.workers import worker_pool


def main(arguments: Sequence[str] | None = None) -> int:
    """0 when all are right."""
    parser = argparse.ArgumentParser(prog="python -m studies.clean.verify", description=__doc__)
    parser.add_argument("--only", default="", metavar="REGEX")
    only = parser.parse_args(arguments).only
    chosen = [case for case in design() if re.search(only, case.key)]
    programs = dict.fromkeys(map(as_fp64, chosen))
    prepare()
    pool, wrong = worker_pool(2), 0
    try:
        for program in programs:
            found = differences(program, pool)
            worst = max(found, key=lambda name: found[name])
            wrong += found[worst] > LIMIT
            print(f"{program.key}: {found[worst]:.1e} {worst}", flush=True)
    finally:
        pool.close()
    print(f"{wrong} of {len(programs)} differ by more than {LIMIT:.0e}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
