"""Steps that are let pass: made like others, not recorded, and what they leave is the start."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import tiny_train
from ttrace.analysis.check import check, check_isolated
from ttrace.analysis.isolate import write_plans
from ttrace.core.blame import Blame, Phase, Reason, Stage
from ttrace.core.ids import Kind
from ttrace.core.results import CheckResult, Outcome
from ttrace.trace.reader import Trace


def record(folder: Path, *flags: str, **how: object) -> Path:
    return tiny_train.record(folder, "--steps", "3", *flags, steps=1, skip=2, **how)


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("traces")
    record(folder / "reference")
    record(folder / "noisy", noise_seed=1)
    record(folder / "wrong", "--scale", "1.01")
    return folder


def compared(traces: Path, candidate: Path) -> CheckResult:
    return check(traces / "reference", candidate, perturbed=[traces / "noisy"])


def test_the_numbers_of_steps_are_the_real_ones(traces: Path) -> None:
    trace = Trace.open(traces / "reference")
    assert trace.steps == (1, 2)
    assert trace.ranks[0].summary is not None
    assert trace.ranks[0].summary.steps == 1


def test_of_the_last_one_let_pass_only_what_it_leaves_is_recorded(traces: Path) -> None:
    ids = Trace.open(traces / "reference").by_id()
    assert {id_.kind for id_ in ids if id_.step == 1} == {Kind.OPTIMIZER, Kind.PARAM_AFTER}
    assert {Kind.PARAM, Kind.INPUT, Kind.GRAD} <= {id_.kind for id_ in ids if id_.step == 2}


def test_steps_are_those_of_a_run_that_records_all(traces: Path, tmp_path: Path) -> None:
    whole = Trace.open(tiny_train.record(tmp_path / "whole", steps=3)).by_id()
    later = Trace.open(traces / "reference").by_id()
    digests = {
        id_: [record.location.xxh3 for record in records if record.location]
        for id_, records in whole.items()
    }
    for id_, records in later.items():
        assert [record.location.xxh3 for record in records if record.location] == digests[id_]


def test_a_correct_run_passes(traces: Path, tmp_path: Path) -> None:
    result = compared(traces, record(tmp_path / "again"))
    assert result.outcome is Outcome.EQUIVALENT
    assert result.runs[0].steps == 1


def test_what_went_wrong_before_is_told_from_what_goes_wrong_now(traces: Path) -> None:
    (culprit,) = compared(traces, traces / "wrong").culprits
    assert culprit.blame == Blame.at(Stage.INITIAL_PARAMETERS, Phase.PARAMETERS)
    assert culprit.reason is Reason.OTHER_BY_THEN


def test_an_isolated_run_starts_from_what_they_left(traces: Path, tmp_path: Path) -> None:
    tapped, plans = record(tmp_path / "tapped", tap=True), tmp_path / "plans"
    for run, name in ((tapped, "reference"), (traces / "wrong", "candidate")):
        write_plans(tapped, run, plans / name)
    noisy = record(tmp_path / "noisy", noise_seed=1, plan=plans / "reference")
    wrong = record(tmp_path / "wrong", "--scale", "1.01", plan=plans / "candidate")
    result = check_isolated(tapped, wrong, plans=plans / "candidate", perturbed=[noisy])
    assert [culprit.blame for culprit in result.culprits] == [
        Blame.of("second", phase=Phase.FORWARD)
    ]
    assert not result["step2/first:param.weight"].verdict.is_failure
