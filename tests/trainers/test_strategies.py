"""Trainers in their strategies: silent, whole and unchanged; made wrong, named exactly."""

from __future__ import annotations

import pytest

from tests.support.tracing import explain
from ttrace.lab.functions import WorkerPool
from zoo.programs.program import Program, Wrong
from zoo.programs.trial import try_program, try_wrong, unjudged
from zoo.trainers.bitwise import is_unchanged
from zoo.trainers.judged import not_judged
from zoo.trainers.registry import strategies, wrong_strategies
from zoo.trials import Trials

pytestmark = pytest.mark.trainers
STRATEGIES = pytest.mark.parametrize(
    "program", strategies().values(), ids=lambda program: program.name
)


@STRATEGIES
def test_a_correct_strategy_is_silent_and_all_of_it_is_judged(
    program: Program, fresh_trials: Trials
) -> None:
    trial = try_program(fresh_trials, program)
    assert trial.is_silent, explain(trial.told)
    assert program.unjudged or not unjudged(trial.plain)
    assert not_judged(trial.plain) == ()


@STRATEGIES
def test_tracing_changes_no_bit(program: Program, fresh_pool: WorkerPool) -> None:
    assert is_unchanged(fresh_pool, program.candidate)


@pytest.mark.parametrize("wrong", wrong_strategies(), ids=lambda wrong: wrong.name)
def test_a_wrong_strategy_is_named_and_its_twin_is_silent(
    wrong: Wrong, fresh_trials: Trials
) -> None:
    program = strategies()[wrong.program]
    trial = try_wrong(fresh_trials, program, wrong)
    assert wrong.is_named_by(trial.named), explain(trial.told)
    assert try_program(fresh_trials, program).is_silent


def test_every_trainer_has_three_wrong_runs() -> None:
    trainers = {name.partition("/")[0] for name in strategies()}
    for trainer in trainers:
        assert sum(each.name.startswith(f"{trainer}/") for each in wrong_strategies()) >= 3, trainer


def test_names_are_taken_once() -> None:
    names = [each.name for each in wrong_strategies()]
    assert len(set(names)) == len(names)
    assert not set(names) & set(strategies())
