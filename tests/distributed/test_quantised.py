"""Wrong scales, wrong codes and wrong amaxes are placed and told apart; the twins are silent."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.quantised_train import ONE, PLANTS, TWO, Recipe, train
from tests.support.tracing import explain
from ttrace.core.blame import Blame, Mistake, Phase
from ttrace.core.results import CheckResult, Outcome
from ttrace.lab.experiment import Experiment
from ttrace.lab.functions import WorkerPool
from ttrace.lab.launch import LocalExecutor
from ttrace.lab.run import Function


def compare(
    pool: WorkerPool,
    folder: Path,
    reference: Recipe,
    candidate: Recipe,
    *,
    isolate: bool = False,
) -> CheckResult:
    experiment = Experiment(
        reference=Function(train, 1, (reference,)),
        candidate=Function(train, 2, (candidate,)),
        folder=folder,
        steps=candidate.steps,
        execute=LocalExecutor(pool),
    )
    return experiment.diff() if isolate else experiment.compare()


@pytest.mark.parametrize("plant", PLANTS)
def test_what_is_wrong_is_placed_and_told(plant: str, pool: WorkerPool, tmp_path: Path) -> None:
    recipe, mistake = PLANTS[plant]
    result = compare(pool, tmp_path, recipe, replace(recipe, plant=plant))
    culprit, *_ = result.culprits
    assert culprit.blame == Blame.of("quantise", phase=Phase.FORWARD), explain(result)
    assert culprit.diagnosis is not None, explain(result)
    assert culprit.diagnosis.mistake is mistake, explain(result)
    if plant == "wrong scale on one rank":
        factors = {part.ranks: part.factor for part in culprit.diagnosis.factors}
        assert factors == {(0,): pytest.approx(1.0), (1,): pytest.approx(1 / 1.5)}


def test_an_isolated_run_tells_it_too(pool: WorkerPool, tmp_path: Path) -> None:
    """Taps hand plain values on, where the module before them made codes."""
    plant = "wrong scale on one rank"
    result = compare(pool, tmp_path, ONE, replace(ONE, plant=plant), isolate=True)
    (culprit,) = result.culprits
    assert result.isolation is not None
    assert culprit.blame == Blame.of("quantise", phase=Phase.FORWARD), explain(result)
    assert culprit.diagnosis is not None
    assert culprit.diagnosis.mistake is Mistake.WRONG_SCALE


@pytest.mark.parametrize("recipe", [ONE, TWO], ids=["one step", "two steps"])
def test_the_twin_is_silent(recipe: Recipe, pool: WorkerPool, tmp_path: Path) -> None:
    result = compare(pool, tmp_path, recipe, recipe)
    assert result.outcome is Outcome.EQUIVALENT, explain(result)
