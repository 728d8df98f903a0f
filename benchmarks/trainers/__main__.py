"""Tries all trainers in all strategies, right and wrong, and writes docs/reference/trainers.md.

$ python -m benchmarks.trainers [NAME ...]      (with names: those alone, and nothing is written)
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.programs.__main__ import chosen, told, tried
from benchmarks.programs.table import WrongRow
from benchmarks.trainers.table import StrategyRow, page
from ttrace.errors import TTraceError
from ttrace.lab.functions import WorkerPool
from zoo.programs.program import Program, Wrong
from zoo.programs.trial import try_program, try_wrong
from zoo.trainers import titan_cpu
from zoo.trainers.bitwise import is_unchanged
from zoo.trainers.registry import strategies, wrong_strategies
from zoo.trials import Trials
from zoo.workers import worker_pool

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "trainers.md"
# Imported before processes are forked: each takes seconds.
_FRAMEWORKS = ("transformers", "accelerate", "peft", "lightning", "deepspeed")


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


def trainers_pool() -> WorkerPool:
    """A process for every run, forked from one that has imported all frameworks there are."""
    torch.set_num_threads(1)
    torch.backends.mkldnn.set_flags(False)
    # Said before they are imported: no GPU is looked for, and nothing is compiled or fetched.
    os.environ |= {"DS_ACCELERATOR": "cpu", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "0"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of other people's
        for name in _FRAMEWORKS:
            if importlib.util.find_spec(name):
                importlib.import_module(name)
        if all(map(importlib.util.find_spec, titan_cpu.NEEDS)) and not torch.cuda.is_available():
            titan_cpu.install()
    if "deepspeed.ops" in sys.modules:  # it would compile one to send tensors in shared memory
        ops: Any = sys.modules["deepspeed.ops"]
        ops.__compatible_ops__ = {**ops.__compatible_ops__, "deepspeed_shm_comm": False}
    return worker_pool(2, fresh=True)


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
