"""Megatron sums gradients over data-parallel ranks, then over others: both are recorded."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.tracing import explain
from ttrace.core.ids import Kind
from ttrace.lab.run import Function
from ttrace.report.view import root_causes
from zoo.bug import Family
from zoo.megatron.training import alone, changed, on_ranks
from zoo.registry import find
from zoo.trials import Trials

SMALL = {"layers": 2, "microbatches": 2}
TENSOR = SMALL | {"tp": 2, "sp": True}
BY_DATA = "reduced over data-parallel ranks"
FINALISED = "reduced over data-parallel ranks it passes, finalised"


@pytest.mark.parametrize(
    "layout",
    [TENSOR, SMALL, SMALL | {"pp": 2, "zero1": True}, SMALL | {"cp": 2, "per_token": True}],
    ids=["tp2-sp", "dp2", "pp2", "cp2-per-token"],
)
def test_both_agree_with_one_process(layout: dict[str, Any], trials: Trials) -> None:
    result = trials.compare(alone(layout), on_ranks(2, layout))
    assert result.exit_code == 0, explain(result)
    of_kind = {
        kind: {(r.id.module, r.id.slot) for r in result.tensors if r.id.kind is kind}
        for kind in (Kind.REDUCED_GRAD, Kind.MAIN_GRAD)
    }
    assert of_kind[Kind.REDUCED_GRAD] == of_kind[Kind.MAIN_GRAD] != set()


def small(name: str) -> Function:
    """The candidate of a bug, with a model of two layers."""
    return changed(find(name, Family.MEGATRON).candidate, **SMALL)


@pytest.mark.parametrize(
    ("name", "reason"), [("no-reduction", BY_DATA), ("norms-unmarked", FINALISED)]
)
def test_the_report_says_which_is_wrong(name: str, reason: str, trials: Trials) -> None:
    result = trials.compare(alone(SMALL), small(name))
    assert result.culprits
    assert all(reason in cause.reason for cause in root_causes(result)), explain(result)
    assert all(
        id_.kind in (Kind.REDUCED_GRAD, Kind.MAIN_GRAD)
        for c in result.culprits
        for id_ in c.evidence
    )


@pytest.mark.parametrize(
    ("candidate", "kind"),
    [
        pytest.param(lambda: on_ranks(2, TENSOR), None, id="twin"),
        pytest.param(lambda: small("norms-unmarked"), Kind.MAIN_GRAD, id="norms-unmarked"),
        pytest.param(lambda: small("no-reduction"), Kind.REDUCED_GRAD, id="no-reduction"),
    ],
)
def test_an_isolated_finalisation_starts_from_the_references_sums(
    candidate: Callable[[], Function], kind: Kind | None, trials: Trials
) -> None:
    result = trials.isolate(alone(SMALL), candidate())
    blamed = {id_.kind for culprit in result.culprits for id_ in culprit.evidence}
    assert blamed == (set() if kind is None else {kind}), explain(result)
    assert result.exit_code == int(kind is not None)
