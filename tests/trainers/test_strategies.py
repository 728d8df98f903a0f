"""Trainers in their strategies: silent, whole and unchanged; made wrong, named exactly.

The first of each trainer are tried here, the others are slow; `make bench-trainers` tries them all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

import pytest

from tests.support.tracing import explain
from ttrace.lab.functions import WorkerPool
from zoo.programs.program import Program, Wrong
from zoo.programs.trial import try_program, try_wrong, unjudged
from zoo.trainers.bitwise import is_unchanged
from zoo.trainers.registry import strategies, wrong_strategies
from zoo.trials import Trials

pytestmark = pytest.mark.trainers
QUICK, QUICK_WRONG = 2, 3  # of each trainer


def params(cases: Iterable[Program | Wrong], quick: int) -> Iterator[object]:
    met: Counter[str] = Counter()
    for case in cases:
        trainer = case.name.partition("/")[0]
        met[trainer] += 1
        marks = () if met[trainer] <= quick else (pytest.mark.slow,)
        yield pytest.param(case, id=case.name, marks=marks)


@pytest.mark.parametrize("program", list(params(strategies().values(), QUICK)))
def test_a_correct_strategy_is_silent_and_all_of_it_is_judged(
    program: Program, fresh_trials: Trials
) -> None:
    trial = try_program(fresh_trials, program)
    assert trial.is_silent, explain(trial.told)
    assert program.unjudged or not unjudged(trial.plain)


@pytest.mark.parametrize("program", list(params(strategies().values(), QUICK)))
def test_tracing_changes_no_bit(program: Program, fresh_pool: WorkerPool) -> None:
    assert is_unchanged(fresh_pool, program.candidate)


@pytest.mark.parametrize("wrong", list(params(wrong_strategies(), QUICK_WRONG)))
def test_a_wrong_strategy_is_named_and_nothing_else(wrong: Wrong, fresh_trials: Trials) -> None:
    trial = try_wrong(fresh_trials, strategies()[wrong.program], wrong)
    assert wrong.is_named_by(trial.named), explain(trial.told)


def test_every_trainer_has_three_wrong_runs() -> None:
    trainers = {name.partition("/")[0] for name in strategies()}
    for trainer in trainers:
        assert sum(each.name.startswith(f"{trainer}/") for each in wrong_strategies()) >= 3, trainer


def test_names_are_taken_once() -> None:
    names = [each.name for each in wrong_strategies()]
    assert len(set(names)) == len(names)
    assert not set(names) & set(strategies())
