"""Switches planted mutants on, one after the other, and says which tier of tests notices each.

    python -m studies.mutants.run COPY [COPY ...]      mutants.json in this folder

Every copy has been planted with the same mutants, and all tests ran in the copies together once
with every switch off (`-p studies.mutants.reached`): so it is known which tests come to which
mutant, and which fail without any. A mutant meets, cheapest first and until one fails, those tests
of `make test` that come to it, then those that CI adds, then all others.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from queue import Queue
from typing import Any

from tests.tiers.plugin import needs
from tests.tiers.records import read_pinned, read_recorded
from tests.tiers.selection import gate, sentinels

_OUT = Path(__file__).with_name("mutants.json")
CUT_OFF = "cut off"
_TIERS = ("test", "ci", "all")
_MOST_SECONDS = 150  # a tier that would take longer for one mutant is cut off, and said to be


@dataclass(frozen=True)
class Reached:
    """What is known from the run without mutants."""

    tests: dict[int, set[str]]  # of each mutant
    failing: frozenset[str]
    known: frozenset[str]


def read_reached(copies: list[Path]) -> Reached:
    tests: dict[int, set[str]] = defaultdict(set)
    failing: set[str] = set()
    known: set[str] = set()
    for copy in copies:
        names = (copy / "mutants.tests").read_text().splitlines()
        known |= set(names)
        for line in (copy / "src/ttrace/mutant.reached").read_text().splitlines():
            mutant, _, test = line.partition(" ")
            if int(test):
                tests[int(mutant)].add(names[int(test) - 1])
        for log in copy.glob("rec*.log"):
            for line in log.read_text(errors="replace").splitlines():
                if line.startswith(("FAILED ", "ERROR ")):
                    failing.add(line.split(" ", 1)[1].split(" - ")[0])
    return Reached(tests, frozenset(failing), frozenset(known))


def tiers_of(known: frozenset[str]) -> dict[str, str]:
    """The tier of every test: unmarked ones are what is not recorded as a flow."""
    flows = read_recorded().flows
    first = sentinels([flow for flow in flows if not needs(flow)])
    chosen = gate(flows, date.today(), read_pinned()) | first
    tiers = dict.fromkeys(known, "test")
    for flow in flows:
        tiers[flow.id] = "test" if flow.id in first else "ci" if flow.id in chosen else "all"
    return tiers


def fails(copy: Path, ids: list[str], seconds: dict[str, float]) -> str:
    """The test that fails first, or that they hang; empty where none does, or time was up."""
    for is_trainer in (False, True):
        chosen = [id_ for id_ in ids if id_.startswith("tests/trainers/") is is_trainer]
        if not chosen:
            continue
        listed = copy / "mutant.ids"
        listed.write_text("\n".join(chosen))
        words = [".venv/bin/python", "-m", "pytest", "-q", "-x", "-n0", "-p", "no:cacheprovider"]
        started = time.monotonic()
        patience = 60 + 4 * sum(seconds.get(id_, 0.1) for id_ in chosen)
        try:
            done = subprocess.run(
                [*words, f"@{listed.name}"],
                cwd=copy,
                capture_output=True,
                text=True,
                check=False,
                timeout=min(patience, _MOST_SECONDS),
            )
        except subprocess.TimeoutExpired:
            return "they hang" if patience < _MOST_SECONDS else CUT_OFF
        if done.returncode not in (0, 5):
            lines = [
                line for line in done.stdout.splitlines() if line[:7] in ("FAILED ", "ERROR t")
            ]
            spent = time.monotonic() - started
            return lines[0][7:150] if lines else f"exit {done.returncode} after {spent:.0f} s"
    return ""


def tried(copy: Path, mutant: dict[str, Any], reached: Reached, tiers: dict[str, str]) -> Any:
    number = mutant["number"]
    ids = reached.tests[number] - reached.failing
    seconds = {flow.id: flow.seconds for flow in read_recorded().flows}
    (copy / "src/ttrace/mutant.on").write_text(str(number))
    try:
        cut = []
        for tier in _TIERS:
            chosen = [id_ for id_ in ids if tiers.get(id_, "all") == tier]
            # Unit tests of the same room know most of it.
            room = f"tests/unit/{mutant['file'].split('/')[0]}"
            chosen.sort(key=lambda id_: (not id_.startswith(room), seconds.get(id_, 0.1), id_))
            by = fails(copy, chosen, seconds) if chosen else ""
            if by == CUT_OFF:
                cut.append(tier)
            elif by:
                return {**mutant, "tier": tier, "by": by, "tests": len(ids), "cut": cut}
        return {**mutant, "tier": "none", "by": "", "tests": len(ids), "cut": cut}
    finally:
        (copy / "src/ttrace/mutant.on").write_text("-1")


def main(folders: list[str]) -> None:
    copies = [Path(folder).resolve() for folder in folders]
    mutants = json.loads((copies[0] / "mutants.json").read_text())
    before = json.loads(_OUT.read_text()) if _OUT.exists() else []
    done = {each["number"] for each in before}
    reached = read_reached(copies)
    tiers = tiers_of(reached.known)
    free: Queue[Path] = Queue()
    for copy in copies:
        free.put(copy)

    def one(mutant: dict[str, Any]) -> None:
        copy = free.get()
        try:
            found = tried(copy, mutant, reached, tiers)
        finally:
            free.put(copy)
        before.append(found)
        _OUT.write_text(json.dumps(sorted(before, key=lambda each: each["number"]), indent=1))
        print(found["number"], found["tier"], found["file"], found["line"], found["by"], flush=True)

    with ThreadPoolExecutor(len(copies)) as pool:
        list(pool.map(one, [mutant for mutant in mutants if mutant["number"] not in done]))
    counts = {tier: sum(each["tier"] == tier for each in before) for tier in (*_TIERS, "none")}
    print(counts)


if __name__ == "__main__":
    main(sys.argv[1:])
