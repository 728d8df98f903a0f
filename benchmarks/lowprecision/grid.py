"""What TTrace said of each run of the grid (zoo/lowprecision/grid.py).

Enters: cases. Leaves: for every case its alarms and its largest ratio; both must stay small.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from ttrace.core.results import CheckResult
from ttrace.lab.functions import WorkerPool
from ttrace.lab.run import Function
from zoo.lowprecision.case import Case
from zoo.lowprecision.recipes import RECIPES
from zoo.lowprecision.train import train_rank
from zoo.trials import Trials

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "lowprecision.md"


@dataclass(frozen=True, slots=True, kw_only=True)
class Clean:
    """One case by its key; alarms are tensors that failed or were undecided."""

    key: str
    alarms: int
    largest: float
    largest_id: str
    is_silent: bool
    seconds: float

    @property
    def case(self) -> Case:
        return Case.from_key(self.key)


def read(path: Path) -> dict[str, Clean]:
    """What was found before, by key."""
    if not path.exists():
        return {}
    found = [Clean(**line) for line in json.loads(path.read_text())]
    return {each.key: each for each in found}


def write(path: Path, found: Iterable[Clean]) -> None:
    """All or nothing: a run may be ended at any time."""
    fresh = path.with_suffix(".new")
    fresh.write_text("[\n" + ",\n".join(json.dumps(asdict(each)) for each in found) + "\n]\n")
    fresh.replace(path)


def checked(chosen: Sequence[Case], pool: WorkerPool) -> Iterator[Clean]:
    """Cases of one recipe, precision and seed share the runs of their reference."""
    groups: dict[tuple[str, str, int], list[Case]] = {}
    for case in chosen:
        groups.setdefault((case.recipe, case.dtype, case.seed), []).append(case)
    for same in groups.values():
        with TemporaryDirectory() as folder:
            trials = Trials(pool, Path(folder))
            for case in same:
                yield _checked(case, trials)


def _checked(case: Case, trials: Trials) -> Clean:
    recipe, start = RECIPES[case.recipe], time.monotonic()
    trial = trials.run(
        Function(train_rank, arguments=(recipe.reference(case),)),
        Function(train_rank, ranks=case.ranks, arguments=(case,)),
        steps=case.steps or recipe.steps,
    )
    largest, id_ = max(map(_worst, trial.results))
    return Clean(
        key=case.key,
        alarms=sum(len((*result.failures, *result.undecided)) for result in trial.results),
        largest=largest,
        largest_id=id_,
        is_silent=trial.is_silent,
        seconds=time.monotonic() - start,
    )


def _worst(result: CheckResult) -> tuple[float, str]:
    judged = [(t.ratio, str(t.id)) for t in result.tensors if t.ratio is not None]
    return max(judged, default=(0.0, ""))


def largest_of(found: Iterable[Clean]) -> float:
    return max((each.largest for each in found), default=math.nan)
