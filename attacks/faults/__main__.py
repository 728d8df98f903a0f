"""Raises in every function of the tracer, and prints what reached the run: 0 of everything.

$ python -m attacks.faults --cases 200
program        functions   injected   reached   changed   left   unsaid
...
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from attacks.faults.campaign import (
    PROGRAMS,
    Case,
    Expected,
    Tally,
    Violation,
    attack,
    expected,
    faults,
    sampled,
)
from ttrace.capture.settings import Settings

_COLUMNS = ("reached", "changed", "left", "unsaid")
_SHOWN = 20  # chosen: enough to see a pattern
_KNOWN: dict[str, Expected] = {}  # in workers, which are forked once it is filled


def main(arguments: Sequence[str] | None = None) -> int:
    """0 where no fault reached a run."""
    parser = argparse.ArgumentParser(prog="python -m attacks.faults", description=__doc__)
    parser.add_argument("programs", nargs="*", choices=[[], *PROGRAMS], metavar="PROGRAM")
    parser.add_argument("--cases", type=int, help="a random sample of so many faults")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)  # also: a forked OpenMP must not start threads
    torch.backends.mkldnn.set_flags(False)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="ttrace-faults-") as folder:
        tallies = _campaign(options, Path(folder))
    _print(tallies, time.monotonic() - began)
    return 1 if any(tally.violations for tally in tallies.values()) else 0


def _campaign(options: argparse.Namespace, folder: Path) -> dict[str, Tally]:
    tallies = {name: Tally() for name in options.programs or PROGRAMS}
    _warm(folder)
    for name, tally in tallies.items():
        _forget()
        _KNOWN[name] = known = expected(PROGRAMS[name], folder / name)
        tally.violations += known.violations()
        tally.functions = len(known.counted.calls)
    cases = [Case(name, fault) for name in tallies for fault in faults(_KNOWN[name].counted)]
    cases = sampled(cases, options.cases, options.seed)
    with multiprocessing.get_context("fork").Pool(options.jobs) as pool:
        for case, has_fired, found in pool.imap_unordered(_attack, cases, chunksize=4):
            tally = tallies[case.program]
            tally.injected += has_fired
            tally.unreached += not has_fired
            tally.violations += found
    return tallies


def _warm(folder: Path) -> None:
    """Load and read what a first trace does, once for all processes that are forked from here."""
    found: Any = cache(metadata.entry_points)
    metadata.entry_points = found
    with mock.patch.dict(os.environ, Settings(folder=folder / "warm").to_environment()):
        PROGRAMS["plain"].train()


def _forget() -> None:
    """What functions keep of earlier runs: with it they would be attacked in no run."""
    ours = [module for name, module in sys.modules.items() if name.startswith("ttrace.")]
    for function in (value for module in ours for value in vars(module).values()):
        if hasattr(function, "cache_clear"):
            function.cache_clear()


def _attack(case: Case) -> tuple[Case, bool, list[Violation]]:
    _forget()
    has_fired, found = attack(case.fault, _KNOWN[case.program])
    return case, has_fired, found


def _print(tallies: dict[str, Tally], seconds: float) -> None:
    every = [each for tally in tallies.values() for each in tally.violations]
    for kind, case, what in every[:_SHOWN]:
        print(f"{kind}: {case}\n    {what.strip()}\n".replace("\n", "\n    "))
    if len(every) > _SHOWN:
        print(f"and {len(every) - _SHOWN} more")
    print(f"{'program':14}{'functions':>10}{'injected':>10}", *(f"{c:>9}" for c in _COLUMNS))
    for name, tally in tallies.items():
        counts = [sum(each.kind == kind for each in tally.violations) for kind in _COLUMNS]
        print(f"{name:14}{tally.functions:10}{tally.injected:10}", *(f"{c:9}" for c in counts))
    injected = sum(tally.injected for tally in tallies.values())
    unreached = sum(tally.unreached for tally in tallies.values())
    print(f"{injected} faults raised in {seconds:.0f} s, {unreached} not come to")


if __name__ == "__main__":
    sys.exit(main())
