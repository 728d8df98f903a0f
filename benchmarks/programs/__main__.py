"""Tries all programs and all wrong ones made from them, and writes docs/reference/programs.md.

$ python -m benchmarks.programs [NAME ...]      (with names: those alone, and nothing is written)
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import torch

from benchmarks.programs.table import CorrectRow, WrongRow, page
from ttrace.errors import TTraceError
from zoo.programs.program import Program, Wrong
from zoo.programs.registry import programs, wrong_programs
from zoo.programs.trial import try_program, try_wrong
from zoo.trials import Trial, Trials
from zoo.workers import worker_pool

Named = TypeVar("Named", Program, Wrong)
AnyRow = TypeVar("AnyRow", bound=CorrectRow | WrongRow)

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "programs.md"


def main(arguments: Sequence[str] | None = None) -> int:
    """0 when every correct program passed and every wrong one was named exactly."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.programs", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME")
    names = parser.parse_args(arguments).names
    torch.set_num_threads(1)
    torch.backends.mkldnn.set_flags(False)
    known = programs()
    pool = worker_pool(2)  # before torch starts threads: its processes are forked
    try:
        with tempfile.TemporaryDirectory() as folder:
            trials = Trials(pool, Path(folder))
            correct = list(_correct(trials, chosen(known.values(), names)))
            wrong = list(_wrong(trials, known, chosen(wrong_programs(), names)))
    finally:
        pool.close()
    if not names:
        PAGE.write_text(page(correct, wrong))
        print(f"written to {PAGE}")
    are_right = [row.is_right for row in correct] + [row.is_right for row in wrong]
    return 0 if all(are_right) else 1


def chosen(found: Iterable[Named], names: Sequence[str]) -> list[Named]:
    return [each for each in found if not names or each.name in names]


def _correct(trials: Trials, chosen: Sequence[Program]) -> Iterator[CorrectRow]:
    for program in chosen:
        trial, error = tried(partial(try_program, trials, program))
        yield told(CorrectRow(program=program, trial=trial, error=error), program.name)


def _wrong(
    trials: Trials, known: Mapping[str, Program], chosen: Sequence[Wrong]
) -> Iterator[WrongRow]:
    for wrong in chosen:
        trial, error = tried(partial(try_wrong, trials, known[wrong.program], wrong))
        yield told(WrongRow(wrong=wrong, trial=trial, error=error), wrong.name)


def tried(trial: Callable[[], Trial]) -> tuple[Trial | None, str]:
    """What TTrace said, or why it could say nothing."""
    try:
        return trial(), ""
    except TTraceError as error:
        return None, str(error).strip().splitlines()[-1]


def told(row: AnyRow, name: str) -> AnyRow:
    seconds = f"{row.trial.seconds:.1f} s" if row.trial else ""
    print(f"{'ok   ' if row.is_right else 'WRONG'} {name}: {row.answer} {seconds}", flush=True)
    return row


if __name__ == "__main__":
    sys.exit(main())
