"""Bugs planted in the installed megatron-core: found, and the right place named."""

from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support.tracing import explain
from ttrace.core.finding import Topic
from ttrace.lab.functions import WorkerPool
from ttrace.lab.options import Capture
from zoo.bug import Family
from zoo.registry import bugs, find
from zoo.trials import FEWEST_SUMS, Trials, blames


def names() -> list[str]:
    """All bugs of the family; none where the package is missing."""
    return [bug.name for bug in bugs(Family.MEGATRON)] if find_spec("megatron") else []


# Another scale changes the codes of a tiny tensor by less than the 16 flips that perturbed runs are
# given (decision 36): 0.85 of the tolerance. On larger tensors flips are fewer of all codes.
MISSED = pytest.mark.xfail(strict=False, reason="below what 16 flips do: decision 36")


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=MISSED if n == "fp8-amax-group" else ()) for n in names()],
)
def test_a_planted_bug_is_named_and_its_twin_is_silent(name: str, trials: Trials) -> None:
    bug = find(name, Family.MEGATRON)
    wrong, twin = trials.bug(bug), trials.twin(bug)
    assert wrong.result.exit_code == 1
    assert bug.is_named_by(blames(wrong.told)), explain(wrong.told)
    assert twin.is_silent, explain(twin.told)


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
