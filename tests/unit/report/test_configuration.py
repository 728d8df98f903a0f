"""Configuration as a difference: what is expected is calm, what nobody set is left out."""

from __future__ import annotations

from dataclasses import replace

from tests.support.made_results import made
from ttrace.core.finding import Note, Topic
from ttrace.core.record import Difference, Owner
from ttrace.core.results import CheckResult
from ttrace.report.html import Setting, settings

RESULT = made(2)


def differing(result: CheckResult) -> dict[str, Setting]:
    return {found.name: found for found in settings(result) if found.differs}


def with_facts(**facts: dict[str, str]) -> CheckResult:
    runs = (replace(run, facts=facts.get(run.role, run.facts)) for run in RESULT.runs)
    return replace(RESULT, runs=tuple(runs))


def test_number_of_ranks_and_mesh_are_expected_to_differ() -> None:
    found = differing(RESULT)
    assert set(found) == {"ranks", "mesh"}
    assert all(setting.is_expected for setting in found.values())
    assert found["mesh"].candidate == "dp 2 x tp 2"


def test_seed_that_nobody_set_is_no_finding() -> None:
    drawn = {"torch seed": "9137246283476123487"}
    other = {"torch seed": "3137246283476123487"}
    assert "torch seed" not in differing(with_facts(reference=drawn, candidate=other))
    one, two = {"torch seed": "1"}, {"torch seed": "2"}
    assert "torch seed" in differing(with_facts(reference=one, candidate=two))
    assert "torch seed" in differing(with_facts(reference=one, candidate=other))


def test_versions_of_one_run_alone_differ() -> None:
    found = differing(with_facts(reference={}, candidate={"git commit": "abc"}))
    assert (found["git commit"].reference, found["git commit"].candidate) == ("none", "abc")
    assert not found["git commit"].is_expected


def test_hyperparameters_that_differ_are_among_them_once() -> None:
    lr = Difference(
        owner=Owner.PARAMETER, name="lr", reference=(1e-3,), candidate=(2e-3,), ranks=(1,)
    )
    eps = Difference(
        owner=Owner.MODULE, name="eps", reference=(1e-5,), candidate=(1e-6,), owned=("norm",)
    )
    failing = made(2, wrong_layer=1)
    culprit = replace(failing.culprits[0], differences=(lr,))
    noted = Note(topic=Topic.OTHER_NUMBER, difference=eps)
    result = replace(failing, culprits=(culprit, culprit), notes=(noted,))
    found = differing(result)
    assert found["lr"].candidate == "0.002 (ranks 1)"
    assert found["eps of norm"].reference == "1e-05"
    assert sum(setting.name == "lr" for setting in settings(result)) == 1


def test_result_of_an_older_version_tells_of_no_runs() -> None:
    assert settings(replace(RESULT, runs=())) == ()
