from __future__ import annotations

from pathlib import Path

import pytest

from attacks.forging import Forged
from tests.support import tiny_train
from ttrace.analysis.check import check
from ttrace.analysis.remarks import of_recipes
from ttrace.core.finding import Topic
from ttrace.core.quantised import WHOLE_NUMBERS
from ttrace.core.results import CheckResult, Outcome
from ttrace.report.overall import note as told
from ttrace.trace import journal
from ttrace.trace.progress import write_death


def recorded(folder: Path, made: int, asked: int, *flags: str) -> Path:
    """A trace of so many steps, whose end says that others were asked for."""
    tiny_train.record(folder, "--light", *flags, steps=made)
    forged = Forged(folder / journal.rank_folder(0))
    forged.lines[-1].value["asked"] = asked
    forged.write()
    return folder


@pytest.fixture
def fewer(tmp_path: Path) -> CheckResult:
    return check(recorded(tmp_path / "one", 1, 3), recorded(tmp_path / "two", 1, 3))


class TestFewerSteps:
    def test_than_were_asked_for_decide_nothing(self, fewer: CheckResult) -> None:
        assert fewer.outcome is Outcome.UNDECIDED
        assert str(fewer) == "UNDECIDED: 1 of 3 steps was made; in it, no tensor differs"

    def test_are_a_note(self, fewer: CheckResult) -> None:
        note = fewer.fewer_steps
        assert note is not None
        assert (note.count, note.total) == (1, 3)

    def test_with_a_difference_are_a_failure_all_the_same(self, tmp_path: Path) -> None:
        noisy = tiny_train.record(tmp_path / "noisy", "--light", noise_seed=1)
        other = recorded(tmp_path / "two", 1, 3, "--scale", "2")
        result = check(recorded(tmp_path / "one", 1, 3), other, perturbed=[noisy])
        assert result.outcome is Outcome.NOT_EQUIVALENT
        assert result.fewer_steps is not None

    def test_are_not_said_of_all_steps(self, tmp_path: Path) -> None:
        result = check(recorded(tmp_path / "one", 3, 3), recorded(tmp_path / "two", 3, 3))
        assert result.outcome is Outcome.EQUIVALENT
        assert result.fewer_steps is None


def test_a_run_that_died_at_its_exit_is_a_note(tmp_path: Path) -> None:
    one, two = recorded(tmp_path / "one", 1, 1), recorded(tmp_path / "two", 1, 1)
    write_death(one, "was killed by SIGABRT")
    result = check(one, two)
    assert result.outcome is Outcome.EQUIVALENT
    assert [n.text for n in result.notes if n.topic is Topic.DIED_AT_EXIT] == [
        "reference run was killed by SIGABRT"
    ]


E4M3 = ["float8_e4m3fn"]
RECIPE = {"a": E4M3, "b": E4M3, "c": E4M3}


class TestRecipes:
    def test_where_modules_quantise_a_plain_pass_says_little(self) -> None:
        (note,) = of_recipes(RECIPE | {"d": [WHOLE_NUMBERS]}, None)
        assert (note.topic, note.modules) == (Topic.CODES_FLIP, ("a", "b", "c"))
        assert told(note).startswith("a, b, c quantise: codes that flip")

    @pytest.mark.parametrize("reference", [None, {}, {"d": [WHOLE_NUMBERS]}])
    def test_where_none_does_nothing_is_said(self, reference: dict[str, list[str]] | None) -> None:
        assert list(of_recipes(reference, None)) == []

    def test_an_isolated_run_that_was_watched_tells_who_quantises_otherwise(self) -> None:
        assert list(of_recipes(RECIPE, RECIPE)) == []
        (note,) = of_recipes(RECIPE, RECIPE | {"b": ["float8_e5m2"]})
        assert (note.topic, note.modules) == (Topic.OTHER_RECIPE, ("b",))
        assert told(note).startswith("b makes other codes than in the reference, or none")
