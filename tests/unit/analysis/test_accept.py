"""The accept list: what it does to verdicts and blame, what it refuses, and how it is written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.isolated_results import wrong_by
from tests.support.judging import ruled
from tests.support.made_results import made
from ttrace.analysis.accept import acceptances, append_entry, uses, with_isolated
from ttrace.analysis.judge.rules.acceptance import Acceptances
from ttrace.analysis.localize import localize_isolated
from ttrace.core.blame import Blame, Phase
from ttrace.core.results import Acceptance, CheckResult, Outcome, TensorResult, Verdict
from ttrace.errors import UsageError
from ttrace.lab.experiment import localized

DROP = Acceptance(id="step*/b.c:*", reason="each rank draws its own mask")


def accepted(
    results: Sequence[TensorResult], entries: Sequence[Acceptance]
) -> tuple[TensorResult, ...]:
    return ruled(Acceptances(), results, accept=entries)


def test_what_is_accepted_is_no_culprit_and_others_stay() -> None:
    wrong = wrong_by({"b.c:output.0": 900.0, "e:output.0": 30.0})
    found = accepted(wrong, [DROP])
    assert [c.blame for c in localize_isolated(found)] == [Blame.of("e", phase=Phase.FORWARD)]
    assert [str(r.id) for r in found if r.verdict is Verdict.ACCEPTED] == ["step0/b.c:output.0"]


@pytest.mark.parametrize(("bound", "count", "beyond"), [(899.0, 0, 1), (901.0, 1, 0)])
def test_beyond_its_bound_it_stays_a_failure(bound: float, count: int, beyond: int) -> None:
    wrong = wrong_by({"b.c:output.0": 900.0})
    entry = replace(DROP, bound=bound)
    (used,) = uses(wrong, [entry])
    assert (used.count, used.beyond) == (count, beyond)
    assert any(r.verdict.is_failure for r in accepted(wrong, [entry])) is bool(beyond)


def test_what_cannot_be_measured_is_beyond_every_bound() -> None:
    missing = [replace(r, verdict=Verdict.MISSING) for r in wrong_by({"b.c:output.0": 1.1})[9:10]]
    assert accepted(missing, [replace(DROP, bound=1e9)])[0].verdict is Verdict.MISSING
    assert accepted(missing, [DROP])[0].verdict is Verdict.ACCEPTED


def test_an_entry_that_no_failure_needs_is_known() -> None:
    (used,) = uses(wrong_by({"a:output.0": 3.0}), [DROP])
    assert (used.count, used.beyond) == (0, 0)


def isolated(others: dict[str, float]) -> CheckResult:
    tensors = accepted(wrong_by({"b.c:output.0": 900.0, **others}), [DROP])
    return replace(made(2), tensors=tensors, culprits=localize_isolated(tensors))


def test_what_follows_from_an_accepted_difference_is_accepted_too() -> None:
    plain = replace(made(2), tensors=tuple(wrong_by({"b.d:output.0": 40.0, ":loss": 7.0})))
    found = localized(plain, isolated({}))
    assert found.outcome is Outcome.EQUIVALENT
    assert found.counts()[Verdict.ACCEPTED] == 2
    assert " accepted (" in str(found)


def test_what_is_wrong_by_itself_is_not_accepted_with_it() -> None:
    plain = replace(made(2), tensors=tuple(wrong_by({"b.d:output.0": 40.0, ":loss": 7.0})))
    found = localized(plain, isolated({"e:output.0": 12.0}))
    assert found.outcome is Outcome.NOT_EQUIVALENT
    assert [c.blame for c in found.culprits] == [Blame.of("e", phase=Phase.FORWARD)]


def test_a_failure_that_the_isolated_run_does_not_know_is_not_accepted_with_it() -> None:
    plain = made(2, wrong_layer=1)
    assert with_isolated(plain, isolated({})) is None


def test_an_entry_is_added_and_the_rest_of_the_file_stays(tmp_path: Path) -> None:
    file = tmp_path / "accept.toml"
    file.write_text("# ours\n[[accept]]\nid = 'a'  # first\nreason = 'b'")
    entry = Acceptance(id='step0/"odd"\\x:*', reason="a é\nline", bound=2.5)
    append_entry(file, entry)
    assert file.read_text().startswith("# ours\n[[accept]]\nid = 'a'  # first\nreason = 'b'\n\n")
    assert acceptances(file) == (Acceptance(id="a", reason="b"), entry)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[[accept]]\nid = 'a'", "entry 1 of .*: reason: found nothing"),
        (
            "[[accept]]\nid = 'a'\nreason = 'b'\nbond = 1",
            "found the key 'bond'",
        ),
        (
            "[[accept]]\nid = 'a'\nreason = 'b'\nbound = true",
            "bound: found True",
        ),
        ("[[accept]]\nid = 'a'\nreason = 'b'\nbound = -1", "must be above 0"),
        ("[accept]\nid = 'a'", r"must hold \[\[accept\]\] entries alone"),
        ("[[ignore]]\nid = 'a'", "found ignore"),
        ("accept = [1]", "entry 1 of .*: found 1, expected an object"),
        ("id =", "is not TOML"),
    ],
)
def test_a_file_that_means_something_else_is_refused(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "accept.toml").write_text(text)
    with pytest.raises(UsageError, match=words):
        acceptances(tmp_path / "accept.toml")


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read the accept list"):
        acceptances(tmp_path / "none.toml")
