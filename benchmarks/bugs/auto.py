"""Tries bugs with values and with fingerprints first, and writes docs/reference/bugs-auto.md.

$ python -m benchmarks.bugs.auto            what is not in benchmarks/bugs-auto.json
$ python -m benchmarks.bugs.auto NAME ...   these bugs, again

Every finished one is kept in that file: remove it after tolerances change.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.bugs.__main__ import ROOT, pool_of
from benchmarks.bugs.auto_table import Entry, Side, page
from benchmarks.megatron.job import quieten
from ttrace.errors import UsageError
from ttrace.lab.options import Capture
from ttrace.report.wording import place
from zoo.bug import Bug, Family
from zoo.registry import bugs, find
from zoo.trials import FEWEST_SUMS, Trial, Trials

PAGE = ROOT / "docs" / "reference" / "bugs-auto.md"
JSON = ROOT / "benchmarks" / "bugs-auto.json"
# What tests/megatron tries; `make bench-megatron` tries all, with values.
MEGATRON = (
    *("embedding-mask", "context-loss-scale", "tied-embedding", "stale-parameters"),
    *("stage-division", "norm-sync", "context-attention-gradient", "norm-of-one-stage"),
    *("low-precision-accumulation", "token-loss-context", "input-gradient", "expert-forward"),
    *("expert-backward", "router-choice", "dispatcher-order", "balance-coefficient"),
    *("z-loss-context", "head-coefficient", "no-reduction", "norms-unmarked", "loud-tokens"),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """0 when fingerprints name the same places everywhere and every twin is silent."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bugs.auto", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="row-bias, or megatron/norm-sync")
    names = parser.parse_args(arguments).names
    quieten()
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # Megatron's patches for CPU: as if there were no GPU
    listed = listed_bugs()
    try:
        chosen = _chosen(listed, names)
    except UsageError as error:
        parser.error(str(error))
    known = json.loads(JSON.read_text()) if JSON.exists() else {}
    found = {key: Entry.read(known[key]) for key in listed if key in known}
    left = {key: bug for key, bug in chosen.items() if names or key not in found}
    for key, entry in _entries(left):
        found[key] = entry
        _save({key: found[key] for key in listed if key in found})
        print(f"{len(found)} of {len(listed)}: {key}: {entry.told}", flush=True)
    entries = {key: found[key] for key in listed if key in found}
    PAGE.write_text(page(entries, missing=len(listed) - len(entries), sums=FEWEST_SUMS))
    return 0 if all(entry.is_right for entry in entries.values()) else 1


def listed_bugs() -> dict[str, Bug]:
    """Those of `make bench-bugs`, then Megatron's."""
    own = [*bugs(Family.NATIVE), *bugs(Family.DEMO)]
    megatron = [find(name, Family.MEGATRON) for name in MEGATRON]
    return {f"{bug.family}/{bug.name}": bug for bug in (*own, *megatron)}


def _chosen(listed: dict[str, Bug], names: Sequence[str]) -> dict[str, Bug]:
    """By `family/name`, by name, or all of a family."""
    known = {name for key, bug in listed.items() for name in (key, bug.name, bug.family)}
    if unknown := sorted({*names} - known):
        raise UsageError(f"no such bug: {', '.join(unknown)}")
    return {
        key: bug
        for key, bug in listed.items()
        if not names or {key, bug.name, bug.family} & {*names}
    }


def _entries(left: dict[str, Bug]) -> Iterator[tuple[str, Entry]]:
    pool = pool_of(max((bug.ranks for bug in left.values()), default=1))
    try:
        with tempfile.TemporaryDirectory() as folder:
            full = Trials(pool, Path(folder))
            auto = Trials(pool, Path(folder), capture=Capture.AUTO, fewest_sums=FEWEST_SUMS)
            for key, bug in left.items():
                yield key, _entry(full.bug(bug), auto.bug(bug), auto.twin(bug))
    finally:
        pool.close()


def _entry(full: Trial, auto: Trial, twin: Trial) -> Entry:
    return Entry(
        full=_side(full),
        auto=_side(auto),
        same=set(full.named) == set(auto.named),
        is_silent=twin.is_silent,
    )


def _side(trial: Trial) -> Side:
    return Side(
        named=[place(culprit) for culprit in trial.culprits],
        plain=trial.plain.exit_code,
        size_bytes=trial.size_bytes,
        seconds=round(trial.seconds_alone, 1),
    )


def _save(entries: dict[str, Entry]) -> None:
    """All or nothing: a run may be ended at any time."""
    fresh = JSON.with_suffix(".new")
    kept = {key: entry.written() for key, entry in entries.items()}
    fresh.write_text(json.dumps(kept, indent=1) + "\n")
    fresh.replace(JSON)


if __name__ == "__main__":
    sys.exit(main())
