"""The smallest errors that are found in each recipe, beside constants and the norm alone.

    $ python -m studies.power.lowprecision [--only REGEX]      (with it, the page is not written)

A correct run of every recipe is made, plain and isolated. Errors are then planted into its recorded
values, as `python -m studies.power` does.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.bugs.__main__ import pool_of
from benchmarks.lowprecision.grid import PAGE
from benchmarks.pages import replaced
from studies.power.__main__ import at_95_percent
from studies.power.inject import INJECTIONS
from studies.power.methods import METHODS, comparable
from studies.power.sweep import TRIALS, Spoilt, recorded, smallest
from ttrace.core.results import CheckResult
from ttrace.lab.experiment import Experiment
from ttrace.lab.functions import TASK_SECONDS, WorkerPool
from ttrace.lab.launch import LocalExecutor
from ttrace.lab.run import Function
from zoo.lowprecision.case import Case
from zoo.lowprecision.recipes import RECIPES
from zoo.lowprecision.train import SIZES, train_rank

JSON = Path(__file__).with_name("lowprecision.json")
KINDS = ("factor", "one row")
_COLUMNS: Mapping[str, str] = {  # by their names: how a method is called in the table
    "rel 1e-3": "constant 1e-3",
    "rel 1e-2": "constant 1e-2",
    "perturbed, norm only": "norm only",
    "ours": "TTrace",
    "isolated": "TTrace, isolated",
}
_PEERS = tuple(name for name in _COLUMNS if name in METHODS)
_OURS = {"ours": 1.0}

Found = dict[str, dict[str, float]]  # kind of error: by method


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m studies.power.lowprecision")
    parser.add_argument("--only", default="", metavar="REGEX", help="cases that have it")
    only = parser.parse_args().only
    with tempfile.TemporaryDirectory(prefix="power-") as folder:
        runs = list(_correct_runs(only, Path(folder)))
        found = {run.case.key: swept(run, widenings(runs, run.case.dtype)) for run in runs}
    if only:
        print(power_table(found))
        return 0
    JSON.write_text(json.dumps(found, indent=1) + "\n")
    PAGE.write_text(replaced(PAGE.read_text(), "power", power_table(found)))
    return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A correct run, and what was said of it."""

    case: Case
    plain: CheckResult
    isolated: CheckResult


def cases() -> Iterable[Case]:
    """Each recipe once in each precision."""
    for recipe in RECIPES.values():
        layout = "tp2" if "tp2" in recipe.layouts else recipe.layouts[0]
        for dtype in recipe.dtypes:
            yield Case(recipe=recipe.name, layout=layout, dtype=dtype)


def _correct_runs(only: str, folder: Path) -> Iterator[Run]:
    pool = pool_of(2)
    try:
        for number, case in enumerate(cases()):
            if re.search(only, case.key):
                yield _correct_run(case, pool, folder / str(number))
                print(case.key, flush=True)
    finally:
        pool.close()


def _correct_run(case: Case, pool: WorkerPool, folder: Path) -> Run:
    recipe = RECIPES[case.recipe]
    folder.mkdir()
    asked = Experiment(
        reference=Function(train_rank, arguments=(recipe.reference(case),)),
        candidate=Function(train_rank, ranks=case.ranks, arguments=(case,)),
        folder=folder,
        steps=case.steps or recipe.steps,
        timeout_seconds=TASK_SECONDS,
        execute=LocalExecutor(pool),
    )
    plain = asked.compare()
    return Run(case=case, plain=plain, isolated=asked.isolate(plain))


def widenings(runs: Sequence[Run], dtype: str) -> dict[str, float]:
    """What limits must be multiplied by for no alarm in any correct run of this precision."""
    judged = [
        each
        for run in runs
        if run.case.dtype == dtype
        for each in run.plain.tensors
        if comparable(each)
    ]
    return {
        name: max([1.0, *(METHODS[name](each, SIZES.n_layers) for each in judged)])
        for name in _PEERS
    }


def swept(run: Run, limits: Mapping[str, float]) -> Found:
    """The smallest errors of each kind that each way finds in one recipe."""
    plain, isolated = smallest_errors(run.plain, limits), smallest_errors(run.isolated, _OURS)
    return {kind: plain[kind] | {"isolated": isolated[kind]["ours"]} for kind in KINDS}


def smallest_errors(result: CheckResult, limits: Mapping[str, float]) -> Found:
    """Of each kind of error the size that 95% of the trials need; NaN where none could be made."""
    sizes: dict[str, dict[str, list[float]]] = {
        kind: {name: [] for name in limits} for kind in KINDS
    }
    for each, reference, candidate, pair in recorded(result):
        for kind in KINDS:
            for trial in range(TRIALS):
                given = (reference, candidate, pair, INJECTIONS[kind], trial, SIZES.n_layers)
                spoilt = Spoilt(each, *given)
                for name, limit in limits.items():
                    sizes[kind][name].append(smallest(spoilt, name, limit))
    return {
        kind: {name: at_95_percent(found) if found else math.nan for name, found in own.items()}
        for kind, own in sizes.items()
    }


def power_table(found: Mapping[str, Found]) -> str:
    heads = [f"{kind}: {name}" for kind in KINDS for name in _COLUMNS.values()]
    lines = [f"| recipe | precision | {' | '.join(heads)} |", "|---" * (2 + len(heads)) + "|"]
    for key, kinds in found.items():
        case = Case.from_key(key)
        cells = [_cell(kinds[kind][name]) for kind in KINDS for name in _COLUMNS]
        lines.append(f"| {case.recipe} | {case.dtype} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(size: float) -> str:
    return "-" if math.isnan(size) else f"{size:.2g}"


if __name__ == "__main__":
    sys.exit(main())
