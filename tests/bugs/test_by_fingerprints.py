"""Bugs are named by fingerprints, and by values of suspected blocks, as they are by all values."""

import pytest

from tests.support.tracing import explain
from ttrace.core.finding import Topic
from ttrace.lab.functions import WorkerPool
from ttrace.lab.options import Capture
from zoo.bug import Bug, Family
from zoo.registry import bugs
from zoo.trials import FEWEST_SUMS, Trials

# Of one layout each; benchmarks.bugs.auto tries all.
NAMES = {"lost-hooks", "reduced-again", "divisor-without-parts", "expert-divisor"}
CHOSEN = [bug for bug in bugs(Family.NATIVE) if bug.name in NAMES]


@pytest.fixture(scope="module")
def auto(pool: WorkerPool, tmp_path_factory: pytest.TempPathFactory) -> Trials:
    folder = tmp_path_factory.mktemp("auto")
    return Trials(pool, folder, capture=Capture.AUTO, fewest_sums=FEWEST_SUMS)


@pytest.mark.parametrize("bug", CHOSEN, ids=lambda bug: bug.name)
def test_a_bug_is_named_and_its_twin_is_silent(bug: Bug, auto: Trials) -> None:
    wrong, twin = auto.bug(bug), auto.twin(bug)
    assert bug.is_named_by(wrong.named), explain(wrong.told)
    assert twin.is_silent, explain(twin.told)
    (note,) = (note for note in wrong.plain.notes if note.topic is Topic.FINGERPRINTS)
    assert note.count is not None
    assert note.count > 10
