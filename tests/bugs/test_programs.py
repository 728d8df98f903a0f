"""Programs as people write them: correct ones pass, wrong ones are named, whole and exactly."""

import pytest

from tests.support.tracing import explain
from zoo.programs.program import Program, Wrong
from zoo.programs.registry import programs, wrong_programs
from zoo.programs.trial import try_program, try_wrong, unjudged
from zoo.trials import Trials

QUICK = {"mlp-ddp", "mlp-ddp/same-part"}  # the others are slow


def param(case: Program | Wrong) -> object:
    marks = () if case.name in QUICK else (pytest.mark.slow,)
    return pytest.param(case, id=case.name, marks=marks)


@pytest.mark.parametrize("program", [param(each) for each in programs().values()])
def test_a_correct_program_passes_and_all_of_it_is_judged(program: Program, trials: Trials) -> None:
    trial = try_program(trials, program)
    assert trial.is_silent, explain(trial.told)
    assert program.unjudged or not unjudged(trial.plain)


@pytest.mark.parametrize("wrong", [param(each) for each in wrong_programs()])
def test_a_wrong_program_is_named_and_nothing_else(wrong: Wrong, trials: Trials) -> None:
    trial = try_wrong(trials, programs()[wrong.program], wrong)
    assert wrong.is_named_by(trial.named), explain(trial.told)


def test_names_are_taken_once() -> None:
    names = [wrong.name for wrong in wrong_programs()]
    assert len(set(names)) == len(names)
    assert not set(names) & set(programs())
