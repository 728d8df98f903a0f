"""Bugs planted in the installed megatron-core: found, and the right place named."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.tracing import places
from ttrace.analysis.check import check
from zoo.megatron.cpu import on_cpu
from zoo.megatron.registry import BUGS, all_bugs
from zoo.megatron.training import MODEL_FIELDS, isolate, trace
from zoo.workers import WorkerPool

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


@pytest.fixture(scope="module", autouse=True)
def bugs() -> None:
    with on_cpu():
        all_bugs()


@pytest.mark.parametrize("name", NAMES)
def test_a_planted_bug_is_named(
    name: str, pool: WorkerPool, references: Callable[..., Any], tmp_path: Path
) -> None:
    bug = BUGS[name]
    model = {k: v for k, v in bug.layout.items() if k in MODEL_FIELDS}
    reference, noisy = references(**model)
    candidate = trace(pool, tmp_path / "candidate", bug.ranks, name, **bug.layout)

    result = check(reference, candidate, perturbed=[noisy])

    assert result.exit_code == 1
    assert result.culprits
    assert set(places(result)) <= bug.expected


def test_an_isolated_run_names_the_linear_inside_its_parent(
    pool: WorkerPool, references: Callable[..., Any], tmp_path: Path
) -> None:
    bug = BUGS["input-gradient"]
    candidate = trace(pool, tmp_path / "candidate", bug.ranks, bug.name, **bug.layout)

    result = isolate(
        pool, tmp_path, candidate, bug.ranks, dict(bug.layout), reference={}, bug=bug.name
    )

    assert set(places(result)) == bug.expected


def test_every_bug_says_where_it_was_real() -> None:
    assert len([bug for bug in BUGS.values() if bug.in_paper]) == 14
    assert all(bug.source and bug.expected for bug in BUGS.values())
