"""Programs as people write them: correct ones pass, wrong ones are named, whole and exactly."""

import pytest

from tests.support.tracing import explain
from zoo.programs.program import Program, Wrong
from zoo.programs.registry import programs, wrong_programs
from zoo.programs.trial import try_program, try_wrong, unjudged
from zoo.trials import Trials


@pytest.mark.parametrize("program", programs().values(), ids=lambda program: program.name)
def test_a_correct_program_passes_and_all_of_it_is_judged(program: Program, trials: Trials) -> None:
    trial = try_program(trials, program)
    assert trial.is_silent, explain(trial.told)
    assert program.unjudged or not unjudged(trial.plain)


@pytest.mark.parametrize(
    ("wrong", "program"),
    [pytest.param(each, programs()[each.program], id=each.name) for each in wrong_programs()],
)
def test_a_wrong_program_is_named_and_its_twin_is_silent(
    wrong: Wrong, program: Program, trials: Trials
) -> None:
    trial = try_wrong(trials, program, wrong)
    assert wrong.is_named_by(trial.named), explain(trial.told)
    assert try_program(trials, program).is_silent


def test_names_are_taken_once() -> None:
    names = [wrong.name for wrong in wrong_programs()]
    assert len(set(names)) == len(names)
    assert not set(names) & set(programs())
