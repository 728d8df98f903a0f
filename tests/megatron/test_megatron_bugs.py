"""Bugs planted in the installed megatron-core: found, and the right place named."""

from pathlib import Path

import pytest

from benchmarks.bugs.auto import FEWEST_SUMS
from tests.support.tracing import explain
from ttrace.core.finding import Topic
from ttrace.lab.captured import Capture
from ttrace.lab.functions import WorkerPool
from zoo.bug import Family
from zoo.registry import bugs, find
from zoo.trials import Trials, blames

# One of each kind of place; `make bench-megatron` runs all of them and every correct twin.
NAMES = (
    "embedding-mask",
    "context-loss-scale",
    "tied-embedding",
    "stale-parameters",
    "stage-division",
    "norm-sync",
    "context-attention-gradient",
    "norm-of-one-stage",
    "low-precision-accumulation",
    "token-loss-context",
)


@pytest.mark.parametrize("name", NAMES)
def test_a_planted_bug_is_named(name: str, trials: Trials) -> None:
    bug = find(name, Family.MEGATRON)
    result = trials.compare(bug.reference, bug.candidate, steps=bug.steps)
    assert result.exit_code == 1
    assert result.culprits
    assert set(blames(result)) <= set(bug.expected), explain(result)


def test_an_isolated_run_names_the_linear_inside_its_parent(trials: Trials) -> None:
    bug = find("input-gradient", Family.MEGATRON)
    result = trials.isolate(bug.reference, bug.candidate)
    assert bug.is_named_by(blames(result)), explain(result)


def test_fingerprints_first_name_the_same(pool: WorkerPool, tmp_path: Path) -> None:
    """Two layers, and padding that the reference does not have: `make bench-bugs-auto` has more."""
    bug = find("loud-tokens", Family.MEGATRON)
    wrong = Trials(pool, tmp_path, capture=Capture.AUTO, fewest_sums=FEWEST_SUMS).bug(bug)
    assert bug.is_named_by(wrong.named), explain(wrong.told)
    assert any(note.topic is Topic.FINGERPRINTS for note in wrong.plain.notes)


def test_the_bugs_of_the_paper_are_there() -> None:
    assert len([bug for bug in bugs(Family.MEGATRON) if bug.in_paper]) == 14
