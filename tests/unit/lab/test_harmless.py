"""What differs inside a module without an effect is a note, unless a user is strict."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.made_results import tensor
from ttrace.core.blame import Blame, Culprit, Phase, Reason
from ttrace.core.finding import Topic
from ttrace.core.ids import TensorId
from ttrace.core.results import CheckResult, Outcome
from ttrace.errors import CommandFailed
from ttrace.lab import isolation as isolation_runs
from ttrace.lab import series as lab
from ttrace.lab.experiment import Experiment
from ttrace.lab.run import TracedRun
from ttrace.report import overall

INSIDE = TensorId.parse("step0/a.b:output.0")
GIVEN = TensorId.parse("step0/a:output.0")
BLAMED = Culprit(
    blame=Blame.of("a.b", phase=Phase.FORWARD),
    reason=Reason.GIVEN_REFERENCE_VALUES,
    evidence=(INSIDE,),
)
USUAL = ["reference", "candidate", "perturbed-1"]
ISOLATED = ["isolation/reference", "isolation/perturbed-1", "isolation/candidate"]
KEPT = ["isolation/kept/perturbed-1", "isolation/kept/candidate", "isolation/kept/probe"]


def result(inside: float, given: float) -> CheckResult:
    tensors = (tensor(INSIDE, 0, inside), tensor(GIVEN, 1, given))
    culprits = (BLAMED,) if inside > 1 else ()
    return CheckResult(reference="", candidate="", perturbed=(), tensors=tensors, culprits=culprits)


def without_inside(given: float) -> CheckResult:
    whole = result(0.0, given)
    return replace(whole, tensors=whole.tensors[1:])


def diff(
    monkeypatch: pytest.MonkeyPatch,
    folder: Path,
    isolated: list[CheckResult],
    *,
    strict: bool = False,
    dies: str = "",
) -> tuple[CheckResult, list[str]]:
    names: list[str] = []

    def execute(run: TracedRun) -> None:
        names.append(run.name)
        if run.name == dies:
            raise CommandFailed(f"the {run.name} run died")

    monkeypatch.setattr(lab, "check", lambda *_, **__: result(1e5, 0.1))
    monkeypatch.setattr(isolation_runs, "check_isolated", lambda *_, **__: isolated.pop(0))
    monkeypatch.setattr(isolation_runs, "write_plans", lambda *_, **__: None)
    asked = Experiment(
        reference="one", candidate="four", folder=folder, execute=execute, strict=strict
    )
    return asked.diff(), names


def test_an_error_that_would_have_shown_is_harmless(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    told = [result(1e5, 0.1), without_inside(0.1), without_inside(300.0)]
    found, names = diff(monkeypatch, tmp_path, told)
    assert names == [*USUAL, *ISOLATED, *KEPT]
    assert found.outcome is Outcome.EQUIVALENT
    assert found.culprits == ()
    (said,) = [overall.note(note) for note in found.notes if note.topic is Topic.HARMLESS]
    assert said.startswith("different but equal: 1 tensor inside a, first step0/a.b:output.0,")
    assert str(found).startswith(
        "EQUIVALENT in forward: 1 of 2 tensors within tolerance, 1 different without an effect"
    )


@pytest.mark.parametrize("shown", [0.1, 2.0])
def test_an_error_too_small_to_show_stays_a_mistake(
    shown: float, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    told = [result(1e5, 0.1), without_inside(0.1), without_inside(shown)]
    found, _ = diff(monkeypatch, tmp_path, told)
    assert found.outcome is Outcome.NOT_EQUIVALENT
    assert found.culprits == (BLAMED,)


def test_a_strict_user_hears_of_every_difference(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found, names = diff(monkeypatch, tmp_path, [result(1e5, 0.1)], strict=True)
    assert names == [*USUAL, *ISOLATED]
    assert found.culprits == (BLAMED,)


def test_a_further_run_that_dies_leaves_what_was_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found, _ = diff(monkeypatch, tmp_path, [result(1e5, 0.1)], dies=KEPT[1])
    assert found.culprits == (BLAMED,)
    assert found.isolation is not None
    assert Topic.NO_EVIDENCE in {note.topic for note in found.isolation.notes}
