"""Steps that overflowed and were left out, as dynamic loss scaling does."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.support.grains import measure
from tests.support.judging import ruled
from ttrace.analysis.judge.rules.steps import Overflow
from ttrace.core.finding import Finding
from ttrace.core.ids import TensorId
from ttrace.core.results import TensorResult, Verdict

INF, NAN = torch.full((4,), torch.inf), torch.full((4,), torch.nan)
ONE = torch.ones(4)


def result(id_: str, reference: torch.Tensor, candidate: torch.Tensor) -> TensorResult:
    verdict = Verdict.PASS if reference.equal(candidate) else Verdict.UNDECIDED
    return TensorResult(
        id=TensorId.parse(id_),
        verdict=verdict,
        order=0,
        shape=(4,),
        dtype="float32",
        finding=None,
        statistics=measure(reference, candidate),
    )


OVERFLOWED = result("step0/a:grad.weight", INF, NAN)
PARAMETERS = [result(f"step{step}/a:param.weight", ONE, ONE) for step in (0, 1)]
UPDATED = result("step1/a:param_after.weight", ONE, ONE)


def verdict(*tensors: TensorResult) -> Verdict:
    return ruled(Overflow(), tensors)[0].verdict


def test_gradients_of_a_step_that_both_left_out_pass() -> None:
    found = ruled(Overflow(), [OVERFLOWED, *PARAMETERS, UPDATED])[0]
    assert (found.verdict, found.finding) == (Verdict.PASS, Finding.OVERFLOWED)


@pytest.mark.parametrize("pair", [(ONE, NAN), (INF, ONE)])
def test_also_where_one_of_them_is_finite(pair: tuple[torch.Tensor, torch.Tensor]) -> None:
    assert verdict(result("step0/a:main_grad.w", *pair), *PARAMETERS, UPDATED) is Verdict.PASS


def test_a_step_that_was_made_is_judged() -> None:
    made = result("step0/a:param_after.weight", ONE, NAN)
    assert verdict(OVERFLOWED, *PARAMETERS, UPDATED, made) is Verdict.UNDECIDED


def test_a_run_that_never_updates_is_judged() -> None:
    assert verdict(OVERFLOWED, *PARAMETERS) is Verdict.UNDECIDED


def test_activations_are_judged() -> None:
    output = result("step0/a:output.0", INF, NAN)
    assert verdict(output, *PARAMETERS, UPDATED) is Verdict.UNDECIDED


def test_finite_gradients_are_judged() -> None:
    wrong = replace(result("step0/a:grad.weight", ONE, 2 * ONE), verdict=Verdict.MISMATCH)
    assert verdict(wrong, *PARAMETERS, UPDATED) is Verdict.MISMATCH
