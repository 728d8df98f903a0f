"""Bugs of released packages: each is proved without TTrace, named by it, and its twin is silent."""

from pathlib import Path

import pytest

from tests.support.tracing import explain
from zoo.trials import Trials
from zoo.wild.bug import Answer, WildBug
from zoo.wild.bugs import WILD
from zoo.wild.trial import try_repaired, try_wild

IGNORED = ("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning")


def param(bug: WildBug) -> object:
    marks = [pytest.mark.extras, *map(pytest.mark.filterwarnings, IGNORED)]
    if bug.installed is None:
        marks.append(pytest.mark.skip(reason=f"{bug.package} is not installed"))
    return pytest.param(bug, id=bug.name, marks=marks)


@pytest.mark.parametrize("bug", [param(bug) for bug in WILD.values()])
def test_a_bug_in_the_wild_is_named_and_its_twin_is_silent(bug: WildBug, trials: Trials) -> None:
    wrong, twin = try_wild(trials, bug), try_repaired(trials, bug)
    assert bug.is_named_by(wrong.named), explain(wrong.told)
    for result in twin.results:
        assert result.exit_code == 0, explain(result)


@pytest.mark.flow
@pytest.mark.parametrize("bug", [param(bug) for bug in WILD.values()])
def test_the_proof_confirms_the_bug_in_the_version_that_has_it(bug: WildBug) -> None:
    answer, printed = bug.proved()
    assert answer is not Answer.FAILED, printed
    if bug.installed == bug.version:
        assert answer is Answer.CONFIRMED, printed


@pytest.mark.flow
@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("print('1, right 1'); raise SystemExit(1)", Answer.FIXED),
        ("raise ImportError('no such loss')", Answer.FAILED),
        ("raise SystemExit(3)", Answer.FAILED),
    ],
)
def test_a_proof_that_breaks_is_no_word_of_a_fix(
    text: str, answer: Answer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "proof.py"
    file.write_text(text)
    monkeypatch.setattr(WildBug, "proof", file)
    assert WILD["hybrid_shard"].proved()[0] is answer
