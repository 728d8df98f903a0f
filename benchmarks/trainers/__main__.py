"""Tries all trainers in all strategies, right and wrong, and writes docs/reference/trainers.md.

$ python -m benchmarks.trainers [NAME ...]      (with names: those alone, and nothing is written)
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from benchmarks.programs.__main__ import chosen, told, tried
from benchmarks.programs.table import WrongRow
from benchmarks.trainers.table import StrategyRow, page
from ttrace.errors import TTraceError
from ttrace.lab.functions import WorkerPool
from zoo.programs.program import Program, Wrong
from zoo.programs.trial import try_program, try_wrong
from zoo.trainers.bitwise import is_unchanged
from zoo.trainers.pool import trainers_pool
from zoo.trainers.registry import strategies, wrong_strategies
from zoo.trials import Trials

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "trainers.md"


def main(arguments: Sequence[str] | None = None) -> int:
    """0 when every strategy is silent, judged and unchanged, and every wrong one is named."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.trainers", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME")
    names = parser.parse_args(arguments).names
    known = strategies()
    pool = trainers_pool()
    try:
        with tempfile.TemporaryDirectory() as folder:
            trials = Trials(pool, Path(folder))
            correct = list(_correct(trials, pool, chosen(known.values(), names)))
            wrong = list(_wrong(trials, known, chosen(wrong_strategies(), names)))
    finally:
        pool.close()
    if not names:
        PAGE.write_text(page(correct, wrong))
        print(f"written to {PAGE}")
    are_right = [row.is_right for row in correct] + [row.is_right for row in wrong]
    return 0 if all(are_right) else 1


def _correct(
    trials: Trials, pool: WorkerPool, programs: Sequence[Program]
) -> Iterator[StrategyRow]:
    for program in programs:
        trial, error = tried(partial(try_program, trials, program))
        try:
            unchanged = is_unchanged(pool, program.candidate)
        except (TTraceError, AssertionError) as failure:
            unchanged, error = False, error or str(failure).strip().splitlines()[-1]
        row = StrategyRow(program=program, trial=trial, error=error, is_unchanged=unchanged)
        yield told(row, program.name)


def _wrong(
    trials: Trials, known: Mapping[str, Program], wrong: Sequence[Wrong]
) -> Iterator[WrongRow]:
    for each in wrong:
        trial, error = tried(partial(try_wrong, trials, known[each.program], each))
        yield told(WrongRow(wrong=each, trial=trial, error=error), each.name)


if __name__ == "__main__":
    sys.exit(main())
