"""Bugs of real frameworks are named exactly, in isolation; their correct twins are silent."""

from pathlib import Path

import pytest

from benchmarks.bugs.catalogue import CASES, PAIRS, SINGLE
from benchmarks.bugs.flow import run_case
from tests.support.tracing import explain
from zoo.native.case import Case
from zoo.workers import WorkerPool

QUICK = {
    "lost-hooks",
    "bf16-reduction",
    "reduced-again",
    "gathered-input-layout",
    "unsplit-positions",
    "gathered-input-layout+reduced-again",
}
QUICK_TWINS = {"train", "train_ddp"}  # of tensor and sequence parallel by hand, experts; of DDP

FAMILIES = list({case.train: case for case in SINGLE}.values())


def marks(*, quick: bool) -> tuple[pytest.MarkDecorator, ...]:
    return () if quick else (pytest.mark.slow,)


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=case.name, marks=marks(quick=case.name in QUICK))
        for case in (*SINGLE, *PAIRS)
    ],
)
def test_the_bugs_are_named_and_nothing_else(case: Case, pool: WorkerPool, tmp_path: Path) -> None:
    outcome = run_case(case, pool, tmp_path / "runs", with_bugs=True)
    assert outcome.is_seen_by_norm is not case.is_hidden, explain(outcome.plain)
    assert len(outcome.named) == len(case.expected), explain(outcome.isolated)
    assert set(outcome.named) == set(case.expected), explain(outcome.isolated)


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=case.layout, marks=marks(quick=case.train.__name__ in QUICK_TWINS))
        for case in FAMILIES
    ],
)
def test_the_twin_is_silent(case: Case, pool: WorkerPool, tmp_path: Path) -> None:
    outcome = run_case(case, pool, tmp_path / "runs", with_bugs=False)
    assert outcome.plain.exit_code == 0, explain(outcome.plain)
    assert outcome.isolated.exit_code == 0, explain(outcome.isolated)
    assert outcome.isolated.coverage.faults == ()


def test_names_are_unique_and_every_pair_is_of_two_bugs() -> None:
    assert len({case.name for case in CASES}) == len(CASES)
    assert all(len(case.planted) == 2 for case in PAIRS)
