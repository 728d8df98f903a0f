"""Tries losses, operators, optimizers and options of FSDP2 on two ranks against one process.

$ python -m studies.sweep [PATTERN ...]      those whose name contains a pattern
$ python -m studies.sweep --list

Prints what is not equivalent, with what TTrace names; what torch refuses is counted, since it is no
silent bug. Whoever is named here deserves a proof of its own (zoo/wild).
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from studies.sweep.jobs import LOSS_PARALLEL, PLACEMENTS, WAYS, train_operator, train_sharded
from studies.sweep.operators import CASES, ROWS, TAKEN_OVER
from ttrace.core.results import Outcome
from ttrace.errors import CommandFailed, TTraceError
from ttrace.lab.run import Function
from ttrace.report.overall import headline
from zoo.trials import Trials
from zoo.workers import worker_pool

_OPTIMIZERS: dict[str, dict[str, object]] = {
    "Adadelta": {},
    "Adafactor": {},
    "Adagrad": {},
    "Adam": {"amsgrad": True},
    "AdamW": {"weight_decay": 0.1},
    "Adamax": {},
    "ASGD": {},
    "Muon": {},
    "NAdam": {},
    "RAdam": {},
    "RMSprop": {"centered": True, "momentum": 0.9},
    "Rprop": {},
    "SGD": {"lr": 0.1, "momentum": 0.9, "nesterov": True},
}
_HAVE_FUSED = frozenset({"Adagrad", "Adam", "AdamW", "SGD"})
_HAVE_FOREACH = _OPTIMIZERS.keys() - {"Adafactor", "Muon"}


@dataclass(frozen=True, slots=True)
class Case:
    """One comparison of two ranks with one process."""

    name: str
    reference: Function
    candidate: Function
    steps: int = 1


def main(arguments: Sequence[str] | None = None) -> int:
    """0 when everything that ran was equivalent."""
    parser = argparse.ArgumentParser(prog="python -m studies.sweep", description=__doc__)
    parser.add_argument("patterns", nargs="*", metavar="PATTERN")
    parser.add_argument("--list", action="store_true", help="Print the names of all cases.")
    told = parser.parse_args(arguments)
    chosen = [
        case
        for case in cases()
        if not told.patterns or any(pattern in case.name for pattern in told.patterns)
    ]
    if told.list:
        print("\n".join(case.name for case in chosen))
        return 0
    torch.set_num_threads(1)
    torch.backends.mkldnn.set_flags(False)
    start = time.monotonic()
    pool = worker_pool(2)  # before torch starts threads: its processes are forked
    try:
        with tempfile.TemporaryDirectory() as folder:
            trials = Trials(pool, Path(folder))
            found = Counter(_tried(trials, case) for case in chosen)
    finally:
        pool.close()
    counts = ", ".join(f"{count} {outcome}" for outcome, count in sorted(found.items()))
    print(f"{counts} in {time.monotonic() - start:.0f} s")
    return 0 if set(found) <= {Outcome.EQUIVALENT.value, "refused"} else 1


def cases() -> Iterator[Case]:
    yield from _placed()
    yield from _sharded()


def _placed() -> Iterator[Case]:
    for name in CASES:
        for rows, words in ((ROWS, ""), (ROWS - 1, ", uneven")):
            reference = Function(train_operator, arguments=(name, rows))
            for placement in PLACEMENTS if rows == ROWS else ("shard 0",):
                candidate = Function(train_operator, ranks=2, arguments=(name, rows, placement))
                yield Case(f"{name}: {placement}{words}", reference, candidate)
    for name in TAKEN_OVER:
        reference = Function(train_operator, arguments=(name, ROWS))
        candidate = Function(train_operator, ranks=2, arguments=(name, ROWS, LOSS_PARALLEL))
        yield Case(f"{name}: {LOSS_PARALLEL}", reference, candidate)


def _sharded() -> Iterator[Case]:
    for name, options in _OPTIMIZERS.items():
        forms: list[dict[str, object]] = [{}]
        if name in _HAVE_FOREACH:
            forms = [{"foreach": True}, {"foreach": False}]
        if name in _HAVE_FUSED:
            forms.append({"fused": True})
        for form in forms:
            said = "".join(f", {key} {value}" for key, value in form.items())
            yield _fsdp2(f"{name}{said}", name, options | form, "whole")
    for way in WAYS[1:]:
        yield _fsdp2(f"FSDP2 {way}", "AdamW", {}, way)


def _fsdp2(title: str, make: str, options: dict[str, object], way: str) -> Case:
    arguments = (make, tuple(options.items()), way)
    return Case(
        title,
        Function(train_sharded, arguments=arguments),
        Function(train_sharded, ranks=2, arguments=arguments),
        steps=2,
    )


def _tried(trials: Trials, case: Case) -> str:
    """The outcome; what is not equivalent is printed."""
    try:
        result = trials.compare(case.reference, case.candidate, steps=case.steps)
    except CommandFailed as error:
        lines = [line for line in str(error).splitlines() if "Error" in line]
        print(f"refused    {case.name}: {(lines or [''])[-1][:100]}", flush=True)
        return "refused"
    except TTraceError as error:
        print(f"NO ANSWER  {case.name}: {str(error).strip().splitlines()[-1]}", flush=True)
        return "no answer"
    if result.outcome is not Outcome.EQUIVALENT:
        print(f"DIFFERENT  {case.name}: {headline(result)}", flush=True)
    return result.outcome.value


if __name__ == "__main__":
    sys.exit(main())
