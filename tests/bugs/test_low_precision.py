"""Training in low precision: correct layouts are silent, and what a pass hides is looked into."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.tracing import explain
from ttrace.core.blame import Diagnosis, Mistake
from ttrace.core.finding import Topic
from ttrace.lab.experiment import Experiment
from ttrace.lab.functions import WorkerPool
from ttrace.lab.launch import LocalExecutor
from ttrace.lab.run import Function
from zoo.bug import Family
from zoo.lowprecision.case import Case
from zoo.lowprecision.grid import cases
from zoo.lowprecision.recipes import RECIPES
from zoo.lowprecision.train import train_rank
from zoo.registry import bugs
from zoo.trials import Trials

LOW_PRECISION = bugs(Family.LOW_PRECISION)


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, id=case.key) for case in cases() if case.seed == 1],
)
def test_a_correct_layout_is_silent(case: Case, trials: Trials) -> None:
    recipe = RECIPES[case.recipe]
    trial = trials.correct(
        Function(train_rank, arguments=(recipe.reference(case),)),
        Function(train_rank, ranks=case.ranks, arguments=(case,)),
        steps=recipe.steps,
    )
    assert trial.is_silent, explain(trial.told)
    assert trial.largest_right_ratio < 1


@pytest.mark.parametrize("is_bug", [True, False])
def test_what_a_pass_hides_is_looked_into(is_bug: bool, pool: WorkerPool, tmp_path: Path) -> None:
    """By `ttrace diff` as people call it, without a word of isolation."""
    (bug,) = (bug for bug in LOW_PRECISION if bug.name == "left-out-of-recipe")
    found = Experiment(
        reference=bug.reference,
        candidate=bug.candidate if is_bug else bug.twin,
        folder=tmp_path,
        steps=bug.steps,
        execute=LocalExecutor(pool),
    ).diff()
    assert found.failures == ()
    assert found.exit_code == int(is_bug), explain(found)
    assert not [note for note in found.notes if note.topic is Topic.CODES_FLIP]
    if is_bug:
        (culprit,) = found.culprits
        assert (culprit.blame,) == bug.expected
        assert culprit.diagnosis == Diagnosis(
            mistake=Mistake.NOT_QUANTISED, reference_dtype="float8_e4m3fn"
        )
