"""Every bug of the demo is found and placed in bfloat16 too; in float32 by test_bugs.py.

The correct twin is in tests/distributed/test_layouts.py and must pass.
"""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.tracing import TrainConfig, check, explain, trace_here, trace_in_pool
from ttrace.core.blame import Mistake
from ttrace.demo.bugs import BUGS, DemoBug
from ttrace.lab.functions import WorkerPool
from zoo.trials import blames

CANDIDATE = TrainConfig(dp=2, tp=2, microbatches=2)
# What the culprit is said to look like; nothing for bugs whose undoing needs what no rank holds.
DIAGNOSES = {
    "norm-grad-unsynced": Mistake.MISSING_ALL_REDUCE,
    "dp-scale": Mistake.SUM_FOR_MEAN,
    "row-bias": Mistake.SAME_VECTOR_IN_EVERY_ROW,
}


@pytest.fixture(scope="module")
def references(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Traces of one process, plain and perturbed."""
    folder = tmp_path_factory.mktemp("reference")
    config = TrainConfig(microbatches=1, dtype="bfloat16")
    with pytest.MonkeyPatch.context() as patch:
        plain = trace_here(config, folder / "plain", patch)
        return plain, trace_here(config, folder / "noisy", patch, noise_seed=1)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_bug_is_found_and_its_place_named(
    bug: DemoBug, references: tuple[Path, Path], pool: WorkerPool, tmp_path: Path
) -> None:
    plain, noisy = references
    config = replace(CANDIDATE, dtype="bfloat16", bug=bug.name)
    result = check(plain, trace_in_pool(config, tmp_path / "candidate", pool), perturbed=[noisy])
    assert result.exit_code == 1
    assert blames(result) == (bug.blame,), explain(result)
    found = result.culprits[0].diagnosis
    assert (found and found.mistake) == DIAGNOSES.get(bug.name)
