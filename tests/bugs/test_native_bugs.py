"""Bugs of real frameworks are named exactly, in isolation; their correct twins are silent."""

import pytest

from tests.support.tracing import explain
from zoo.bug import Bug, Family
from zoo.registry import bugs
from zoo.trials import Trials

NATIVE = bugs(Family.NATIVE)
QUICK = {
    "lost-hooks",
    "bf16-reduction",
    "reduced-again",
    "gathered-input-layout",
    "unsplit-positions",
    "gathered-input-layout+reduced-again",
}
QUICK_TWINS = {  # the others are slow
    *("DDP 2", "TP 2 by hand", "sequence 2 by hand", "FSDP2 over CP 2", "DP 2 x EP 2"),
    "DP 2, layers of its own",
}


def marks(*, quick: bool) -> tuple[pytest.MarkDecorator, ...]:
    return () if quick else (pytest.mark.slow,)


@pytest.mark.parametrize(
    "bug",
    [pytest.param(bug, id=bug.name, marks=marks(quick=bug.name in QUICK)) for bug in NATIVE],
)
def test_the_bugs_are_named_and_nothing_else(bug: Bug, trials: Trials) -> None:
    trial = trials.bug(bug)
    assert trial.is_seen_by_norm is not bug.is_hidden, explain(trial.plain)
    assert bug.is_named_by(trial.named), explain(trial.told)


@pytest.mark.parametrize(
    "bug",
    [
        pytest.param(bug, id=bug.layout, marks=marks(quick=bug.layout in QUICK_TWINS))
        for bug in {bug.twin: bug for bug in NATIVE}.values()
    ],
)
def test_the_twin_is_silent(bug: Bug, trials: Trials) -> None:
    trial = trials.twin(bug)
    for result in trial.results:
        assert result.exit_code == 0, explain(result)
        assert not result.coverage.faults
    assert trial.is_silent


def test_every_pair_is_of_two_bugs() -> None:
    pairs = [bug for bug in NATIVE if bug.together]
    assert pairs
    assert all(len(set(pair.together)) == len(pair.expected) == 2 for pair in pairs)
