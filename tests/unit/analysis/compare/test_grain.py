"""When values of fewer bits than the reference's are wrong, and when they may be so."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.support.grains import BF16, FP16, Run, fine, low
from ttrace.analysis.compare import Asked
from ttrace.trace.dtypes import dtype_name

E4M3 = torch.float8_e4m3fn


def mixed() -> Run:
    """A reference that computes in bfloat16 here and there, as autocast does."""
    return Run().add("linear:output.0", fine().bfloat16(), fine(seed=1).bfloat16())


KINDS = ["output.0", "main_grad.weight", "param_after.weight", "optimizer.weight.exp_avg", "buffer"]


@pytest.mark.parametrize("dtype", [BF16, FP16, E4M3, torch.float8_e5m2], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_a_rounded_tensor_is_named_with_both_dtypes(kind: str, dtype: torch.dtype) -> None:
    run = Run().add(f"a:{kind}", fine(), low(dtype))
    assert run.wrong == {f"a:{kind}": (dtype_name(dtype), "float32")}


@pytest.mark.parametrize("kind", KINDS)
def test_one_that_says_so_by_its_dtype_is_named_too(kind: str) -> None:
    assert Run().add(f"a:{kind}", fine(), fine().bfloat16()).wrong


@pytest.mark.parametrize("candidate", [fine(), fine(seed=1), fine().double()], ids=str)
def test_values_of_the_same_precision_or_a_finer_one_are_not(candidate: Tensor) -> None:
    run = Run().add("a:output.0", fine(), candidate)
    assert (run.wrong, run.allowed) == ({}, set())


def test_the_same_lower_precision_in_both_is_right() -> None:
    run = Run().add("a:output.0", low(), low()).add("b:output.0", low(), low() * 2)
    assert run.wrong == {}


@pytest.mark.parametrize(
    "candidate",
    [
        torch.ones(500),
        torch.zeros(500),
        (torch.arange(500) % 2).float(),
        torch.full((500,), 0.5),
    ],
    ids=["ones", "zeros", "mask", "constant"],
)
def test_few_different_values_are_coarse_by_themselves(candidate: Tensor) -> None:
    """Another mistake made them, of which other statistics tell."""
    assert Run().add("a:param_after.weight", fine(), candidate).wrong == {}


@pytest.mark.parametrize("count", [1, 2])
def test_few_numbers_may_be_round_by_chance(count: int) -> None:
    assert Run().add("a:main_grad.bias", fine(count), low(BF16, count)).wrong == {}


def test_few_numbers_are_wrong_beside_others_of_their_kind() -> None:
    run = Run().add("a:main_grad.bias", fine(2), low(BF16, 2))
    run.add("a:main_grad.weight", fine(), low())
    assert set(run.wrong) == {"a:main_grad.bias", "a:main_grad.weight"}


def test_few_numbers_that_are_stored_in_it_are_wrong() -> None:
    assert Run().add("a:loss", fine(1), fine(1).bfloat16()).wrong == {
        "a:loss": ("bfloat16", "float32")
    }


def test_a_last_place_in_the_reference_is_no_precision() -> None:
    """Whole numbers that the reference divides and multiplies again."""
    whole = torch.arange(1.0, 100.0)
    assert Run().add("a:output.0", whole / 3 * 3.0000002, whole).wrong == {}


def test_what_noise_makes_as_coarse_is_so_by_chance() -> None:
    run = Run().add("a:output.0", fine(), low())
    assert run.wrong
    assert run.perturbed("a:output.0", fine(), low()).wrong == {}


def test_a_gradient_of_one_term_is_as_coarse_as_the_term() -> None:
    """The reference adds two microbatches up, the candidate has one."""
    run = mixed().add("a:grad.weight", fine(), low(), terms=(2, 1))
    run.add("a:main_grad.weight", fine(), low())
    run.add("a:clipped_grad.weight", fine(), low())
    run.add("a:optimizer.weight.momentum_buffer", fine(), low())
    assert run.wrong == {}


def test_a_sum_that_is_as_coarse_as_its_terms_was_rounded() -> None:
    run = mixed().add("a:grad.weight", fine(), fine(seed=2), terms=(1, 2))
    assert run.add("a:main_grad.weight", fine(), low()).wrong == {
        "a:main_grad.weight": ("bfloat16", "float32")
    }


def test_a_state_of_gradients_that_are_right_was_rounded() -> None:
    run = mixed().add("a:grad.weight", fine(), fine()).add("a:main_grad.weight", fine(), fine())
    assert set(run.add("a:optimizer.weight.exp_avg", fine(), low()).wrong) == {
        "a:optimizer.weight.exp_avg"
    }


def test_a_state_that_was_given_the_gradients_of_the_reference_is_wrong_by_itself() -> None:
    run = Run(isolated=True).add("a:main_grad.weight", fine(), low())
    run.add("a:optimizer.weight.momentum_buffer", fine(), low())
    assert set(run.wrong) == {"a:main_grad.weight", "a:optimizer.weight.momentum_buffer"}


TERMS = ["grad.weight", "grad_input.0", "grad_output.0"]


@pytest.mark.parametrize("kind", TERMS)
def test_a_gradient_of_fewer_terms_may_be_coarse_where_the_reference_is_mixed(kind: str) -> None:
    run = mixed().add(f"a:{kind}", fine(), low())
    assert (run.wrong, run.allowed) == ({}, {f"a:{kind}"})


@pytest.mark.parametrize("kind", TERMS)
def test_it_is_wrong_where_the_reference_is_not(kind: str) -> None:
    assert set(Run().add(f"a:{kind}", fine(), low()).wrong) == {f"a:{kind}"}


def test_a_gradient_of_unknown_terms_is_allowed_where_the_reference_is_mixed() -> None:
    run = mixed().add("a:main_grad.weight", fine(), low())
    assert (run.wrong, run.allowed) == ({}, {"a:main_grad.weight"})


def test_an_input_that_is_cast_before_it_is_used_may_be_sent_so() -> None:
    run = mixed().add("a:input.0", fine(), fine().bfloat16())
    run.add("a:output.0", fine(), low())
    assert (run.wrong, run.allowed) == ({}, {"a:input.0"})


def test_an_output_of_finer_inputs_was_rounded() -> None:
    run = mixed().add("a:input.0", fine(), fine()).add("a:output.0", fine(), low())
    assert set(run.wrong) == {"a:output.0"}


def test_a_hidden_cast_of_the_reference_tells_that_it_is_mixed() -> None:
    run = Run().add("b:grad_input.0", low(), low()).add("a:grad_input.0", fine(), low())
    assert run.wrong == {}


def test_what_was_asked_for_is_allowed() -> None:
    everywhere = Run(asked=Asked(everywhere=frozenset({"bfloat16"})))
    run = everywhere.add("a:output.0", fine(), low()).add("b:output.0", fine(), low(FP16))
    assert (set(run.wrong), run.allowed) == ({"b:output.0"}, {"a:output.0"})


def test_what_was_asked_of_the_reduction_is_allowed_there() -> None:
    run = Run(asked=Asked(in_reduction=frozenset({"bfloat16"})))
    run.add("a:main_grad.weight", fine(), low()).add("a:optimizer.weight.exp_avg", fine(2), fine(2))
    run.add("a:param_after.weight", fine(), low())
    assert (set(run.wrong), run.allowed) == ({"a:param_after.weight"}, {"a:main_grad.weight"})


def test_an_activation_that_is_not_quantised_is_named() -> None:
    assert Run().add("a:output.0", low(E4M3), fine()).wrong == {
        "a:output.0": ("float32", "float8_e4m3fn")
    }


@pytest.mark.parametrize("kind", ["main_grad.weight", "grad_input.0", "param_after.weight"])
def test_a_sum_of_quantised_terms_is_rightly_finer(kind: str) -> None:
    assert Run().add(f"a:{kind}", low(E4M3), fine()).wrong == {}
    assert Run().add("a:output.0", low(E4M3), fine(), terms=(1, 2)).wrong == {}


def test_a_reference_in_bfloat16_may_be_exceeded() -> None:
    assert Run().add("a:output.0", low(), fine()).wrong == {}


def test_whole_numbers_below_sixteen_are_not_quantised() -> None:
    whole = (torch.arange(500) % 15 + 1).float()
    assert Run().add("a:output.0", whole, whole * 1.03).wrong == {}
