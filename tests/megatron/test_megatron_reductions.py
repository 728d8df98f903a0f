"""Megatron sums gradients over data-parallel ranks, then over others: both are recorded."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.tracing import explain
from ttrace.analysis.check import check
from ttrace.core.ids import Kind
from ttrace.core.results import CheckResult
from ttrace.report.view import findings
from zoo.megatron.training import MODEL_FIELDS, isolate, trace
from zoo.workers import WorkerPool

SMALL = {"layers": 2, "microbatches": 2}
TENSOR = SMALL | {"tp": 2, "sp": True}
BY_DATA = "reduced over data-parallel ranks"
FINALISED = "reduced over data-parallel ranks it passes, finalised"


def compared(
    pool: WorkerPool, references: Callable[..., Any], folder: Path, bug: str, **layout: Any
) -> CheckResult:
    reference, noisy = references(**{k: v for k, v in layout.items() if k in MODEL_FIELDS})
    candidate = trace(pool, folder / "candidate", 2, bug, **layout)
    return check(reference, candidate, perturbed=[noisy])


@pytest.mark.parametrize(
    "layout",
    [TENSOR, SMALL, SMALL | {"pp": 2, "zero1": True}, SMALL | {"cp": 2, "per_token": True}],
    ids=["tp2-sp", "dp2", "pp2", "cp2-per-token"],
)
def test_both_agree_with_one_process(
    layout: dict[str, Any], pool: WorkerPool, references: Callable[..., Any], tmp_path: Path
) -> None:
    result = compared(pool, references, tmp_path, "", **layout)
    assert result.exit_code == 0, explain(result)
    of_kind = {
        kind: {(r.id.module, r.id.slot) for r in result.tensors if r.id.kind is kind}
        for kind in (Kind.REDUCED_GRAD, Kind.MAIN_GRAD)
    }
    assert of_kind[Kind.REDUCED_GRAD] == of_kind[Kind.MAIN_GRAD] != set()


@pytest.mark.parametrize(
    ("bug", "layout", "reason"),
    [("no-reduction", SMALL, BY_DATA), ("norms-unmarked", TENSOR, FINALISED)],
)
def test_the_report_says_which_is_wrong(
    bug: str,
    layout: dict[str, Any],
    reason: str,
    pool: WorkerPool,
    references: Callable[..., Any],
    tmp_path: Path,
) -> None:
    result = compared(pool, references, tmp_path, bug, **layout)
    assert result.culprits
    assert all(reason in finding.reason for finding in findings(result)), explain(result)
    assert all(
        id_.kind in (Kind.REDUCED_GRAD, Kind.MAIN_GRAD)
        for c in result.culprits
        for id_ in c.evidence
    )


@pytest.mark.parametrize(
    ("bug", "kind", "layout"),
    [
        ("", None, TENSOR),
        ("norms-unmarked", Kind.MAIN_GRAD, TENSOR),
        ("no-reduction", Kind.REDUCED_GRAD, SMALL),
    ],
)
def test_an_isolated_finalisation_starts_from_the_references_sums(
    bug: str, kind: Kind | None, layout: dict[str, Any], pool: WorkerPool, tmp_path: Path
) -> None:
    candidate = trace(pool, tmp_path / "candidate", 2, bug, **layout)
    result = isolate(pool, tmp_path, candidate, 2, layout, reference=SMALL, bug=bug)
    blamed = {id_.kind for culprit in result.culprits for id_ in culprit.evidence}
    assert blamed == (set() if kind is None else {kind}), explain(result)
    assert result.exit_code == int(kind is not None)
