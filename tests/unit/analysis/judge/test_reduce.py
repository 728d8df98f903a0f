"""Verdicts are made in one place, by weight: whoever asks rules in another order gets the same."""

from __future__ import annotations

import random
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import ttrace
from tests.support.judging import made_case, made_source
from ttrace.analysis.engine import Job
from ttrace.analysis.judge import Accusation, Excuse, Rule, Weight, excuse, find_rules, judge
from ttrace.analysis.judge.reduce import weigh
from ttrace.analysis.judge.rulings import FAILURES, Exhibit
from ttrace.core.finding import Finding, Topic
from ttrace.core.ids import TensorId
from ttrace.core.logical import Alignment
from ttrace.core.results import Verdict

ID = TensorId.parse("step0/a:main_grad.weight")
EXHIBIT = Exhibit(alignment=Alignment(id=ID, reference=None, candidate=None), order=0)
PASSES = Accusation(id=ID, verdict=Verdict.PASS, weight=Weight.PASS)
WRONG = Accusation(id=ID, verdict=Verdict.MISMATCH, weight=Weight.WRONG, finding=Finding.NORM)
CONFLICT = Accusation(
    id=ID, verdict=Verdict.CONFLICT, weight=Weight.REPLICAS, finding=Finding.REPLICAS_DISAGREE
)
SOURCES = Path(ttrace.__file__).parent


def stands(*accusations: Accusation) -> Verdict:
    return weigh({ID: EXHIBIT}, accusations)[ID].verdict


def test_the_heaviest_accusation_stands_in_any_order() -> None:
    for order in ([PASSES, WRONG, CONFLICT], [CONFLICT, PASSES, WRONG], [WRONG, CONFLICT, PASSES]):
        assert stands(*order) is Verdict.CONFLICT
    assert stands(WRONG, PASSES) is Verdict.MISMATCH


def test_an_excuse_is_for_what_it_is_about() -> None:
    harmless = Excuse(
        id=ID,
        verdict=Verdict.HARMLESS,
        over=frozenset({Verdict.CONFLICT}),
        topic=Topic.REDUCED_ELSEWHERE,
    )
    accepted = Excuse(id=ID, verdict=Verdict.ACCEPTED, over=FAILURES)
    results = list(weigh({ID: EXHIBIT}, [CONFLICT]).values())
    for excuses in ([harmless, accepted], [accepted, harmless]):
        (found,), (note,) = excuse(results, excuses)
        assert found.verdict is Verdict.HARMLESS
        assert (note.topic, note.count, note.first) == (Topic.REDUCED_ELSEWHERE, 1, ID)
    wrong = weigh({ID: EXHIBIT}, [WRONG]).values()
    assert excuse(wrong, [harmless])[0][0].verdict is Verdict.MISMATCH
    assert excuse(wrong, [harmless, accepted])[0][0].verdict is Verdict.ACCEPTED


class Asks(Rule):
    """A rule from outside: wants something measured, and accuses by it."""

    def jobs(self, case: Any) -> list[Job[Any]]:
        job: Any = SimpleNamespace(name="one")
        return [job]

    def accuse(self, case: Any, found: Any) -> list[Accusation]:
        return [WRONG] if found == ["too far"] else []


class Passes(Rule):
    def accuse(self, case: Any, found: Any) -> list[Accusation]:
        assert found == []
        return [PASSES]


@pytest.mark.parametrize("answer", ["too far", "near"])
def test_what_rules_want_measured_is_measured_in_one_go(answer: str) -> None:
    asked: list[int] = []

    def run(jobs: Any, _: str) -> list[Any]:
        asked.append(len(jobs))
        return [answer for _ in jobs]

    found = judge(made_case({ID: EXHIBIT}), run, [Passes(), Asks(), Asks()])
    assert asked == [2]
    expected = Verdict.MISMATCH if answer == "too far" else Verdict.PASS
    assert found.tensors[0].verdict is expected


def test_shuffled_rules_say_the_same() -> None:
    rules = find_rules()
    case = made_case({ID: EXHIBIT}, candidate=made_source(faults=("a disk was full",)))
    first = judge(case, lambda *_: [], rules)
    for seed in range(10):
        random.Random(seed).shuffle(rules)
        assert judge(case, lambda *_: [], rules) == first


def test_no_other_file_writes_a_verdict() -> None:
    """A call with verdict=... makes a result: rules make accusations and excuses of theirs."""
    writes = re.compile(r"(TensorResult|replace)\([^()]*?\bverdict=", re.DOTALL)
    found = {
        str(file.relative_to(SOURCES))
        for file in SOURCES.rglob("*.py")
        if writes.search(file.read_text())
    }
    assert found == {"analysis/judge/reduce.py"}
