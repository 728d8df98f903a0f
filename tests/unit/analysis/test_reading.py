"""What is read from a comparison: the loss with its sign, and the distance of gradients."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ttrace.analysis.reading import reading_of
from ttrace.core.ids import Kind, TensorId
from ttrace.core.results import CheckResult, TensorResult, Verdict
from ttrace.core.statistics import Statistics
from ttrace.errors import CannotCompare


def tensor(kind: Kind, module: str, candidate: float, reference: float, **id_: Any) -> TensorResult:
    gap = candidate - reference
    statistics = Statistics(
        count=1,
        error_norm=abs(gap),
        reference_norm=abs(reference),
        candidate_norm=abs(candidate),
        dot=candidate * reference,
        max_error=abs(gap),
        error_sum=gap,
        nonfinite_reference=0,
        nonfinite_candidate=0,
        unequal=1,
    )
    id_ = {"step": 0} | id_
    return TensorResult(
        id=TensorId(module=module, kind=kind, **id_),
        verdict=Verdict.UNDECIDED,
        order=0,
        dtype="float32",
        statistics=statistics,
    )


def result(*tensors: TensorResult) -> CheckResult:
    return CheckResult(reference="one", candidate="two", perturbed=(), tensors=tensors)


LOSS = tensor(Kind.LOSS, "", 4.5, 4.0)
GRADIENTS = (
    tensor(Kind.MAIN_GRAD, "a", 4.0, 1.0, slot="weight"),
    tensor(Kind.MAIN_GRAD, "b", -1.0, 3.0, slot="weight"),
)


def test_gradients_are_one_vector() -> None:
    found = reading_of(result(LOSS, *GRADIENTS, tensor(Kind.GRAD, "a", 9.0, 0.0)))
    assert found.reading.gradient_distance == 5.0
    assert found.gradient_norm == pytest.approx(10**0.5)


@pytest.mark.parametrize(("candidate", "reference"), [(4.5, 4.0), (-4.5, -4.0), (0.5, -0.25)])
def test_a_loss_keeps_its_sign(candidate: float, reference: float) -> None:
    found = reading_of(result(tensor(Kind.LOSS, "", candidate, reference), *GRADIENTS))
    assert (found.loss, found.reading.loss) == (reference, candidate)
    assert found.reading.loss_gap == candidate - reference
    assert found.loss_eps == 2.0**-23


def test_the_norm_is_there_where_gradients_are_clipped() -> None:
    assert reading_of(result(LOSS, *GRADIENTS)).reading.grad_norm is None
    norm = tensor(Kind.GRAD_NORM, "", 1.5, 1.0)
    found = reading_of(result(LOSS, *GRADIENTS, norm))
    assert (found.grad_norm, found.reading.grad_norm) == (1.0, 1.5)


def test_the_last_step_counts() -> None:
    later = [tensor(Kind.LOSS, "", 2.0, 1.0, step=1), tensor(Kind.MAIN_GRAD, "a", 1, 0, step=1)]
    found = reading_of(result(LOSS, *GRADIENTS, *later))
    assert (found.loss, found.reading.gradient_distance) == (1.0, 1.0)


@pytest.mark.parametrize(
    "tensors",
    [(LOSS,), GRADIENTS, (replace(LOSS, statistics=None), *GRADIENTS)],
    ids=["no gradients", "no loss", "a loss of one run"],
)
def test_without_a_loss_or_gradients_nothing_is_said(tensors: tuple[TensorResult, ...]) -> None:
    with pytest.raises(CannotCompare, match="two and one have no loss of one number"):
        reading_of(result(*tensors))
