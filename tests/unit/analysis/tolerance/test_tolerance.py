"""How far rounding may move a tensor: every rule by itself, on yardsticks made by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from tests.support.yardsticks import (
    EPS,
    EPS_BF16,
    FACTOR,
    allow,
    allowed,
    noise,
    yardstick,
)
from ttrace.analysis.tolerance import SCALAR_FLOOR_EPS, Factors, Yardstick
from ttrace.analysis.tolerance.factors import BIAS
from ttrace.analysis.tolerance.yardstick import Jump
from ttrace.core.statistics import Statistic, Tolerance


class TestNoise:
    def test_is_multiplied(self) -> None:
        tolerance = allowed("a:output.0", 0.5)
        assert tolerance.error_norm == pytest.approx(FACTOR * 0.5)
        assert tolerance.source == "3 x noise of perturbed reference"

    def test_of_several_runs_counts_at_its_mean(self) -> None:
        several = Factors(judged=1).of(Statistic.NORM, draws=3)
        assert several < FACTOR
        found = allowed("a:output.0", 0.4, 0.5, 0.625).error_norm
        assert found == pytest.approx(several * 0.5)

    def test_of_several_runs_allows_what_each_of_them_shows(self) -> None:
        assert allowed("a:output.0", 0.1, 5.0, 0.1).error_norm == pytest.approx(BIAS * 5.0)

    def test_of_a_run_in_which_nothing_moved_is_no_draw(self) -> None:
        assert allowed("a:output.0", 0.5, 0.0).error_norm == pytest.approx(FACTOR * 0.5)

    def test_of_the_reference_itself_counts_where_it_is_larger(self) -> None:
        again = (noise(2.0),)
        assert allowed("a:output.0", 0.5, repeated=again).error_norm == pytest.approx(FACTOR * 2.0)
        assert allowed("a:output.0", 0.5, repeated=(noise(0.0),)).error_norm == pytest.approx(
            FACTOR * 0.5
        )

    def test_that_was_never_measured_allows_nothing_to_be_said(self) -> None:
        assert allow(**{"a:output.0": yardstick()}) == {}

    @pytest.mark.parametrize(("dtype", "eps"), [("float32", EPS), ("bfloat16", EPS_BF16)])
    def test_of_zero_leaves_one_eps_of_the_dtype(self, dtype: str, eps: float) -> None:
        tolerance = allowed("a:output.0", 0.0, dtype=dtype)
        assert tolerance.error_norm == pytest.approx(FACTOR * eps * 10.0)
        assert tolerance.source == "3 x eps of its dtype"

    def test_above_the_floor_is_not_widened(self) -> None:
        assert allowed("a:output.0", 20 * EPS).error_norm == pytest.approx(FACTOR * 20 * EPS)


class TestMustBeEqual:
    @pytest.mark.parametrize("dtype", ["int64", "bool", "uint8"])
    def test_integers(self, dtype: str) -> None:
        tolerance = allowed("a:input.0", 0.0, dtype=dtype)
        assert tolerance == Tolerance(error_norm=0.0, source="must be equal")

    def test_not_choices_that_noise_changes_too(self) -> None:
        changed = replace(noise(5.0), unequal=7)
        tolerance = allowed("router:output.1", 5.0, dtype="int64", noise=(changed,))
        (limit,) = tolerance.limits
        assert (limit.statistic, limit.allowed) == (Statistic.CHOICES, 3 * 7 + 3)
        assert tolerance.error_norm == math.inf

    def test_parameters_before_the_first_step(self) -> None:
        tolerance = allowed("a:param.weight", 5.0)
        assert tolerance == Tolerance(error_norm=0.0, source="must be equal")

    def test_not_the_updated_ones(self) -> None:
        assert allowed("a:param_after.weight", 5.0).error_norm > 0


class TestScalars:
    def test_have_a_wider_floor(self) -> None:
        tolerance = allowed("a:output.0", 0.0, volume=1)
        assert tolerance.error_norm == pytest.approx(FACTOR * SCALAR_FLOOR_EPS * EPS * 10.0)
        assert tolerance.source == "3 x 16 eps"

    def test_with_more_noise_than_that_keep_it(self) -> None:
        assert allowed("a:output.0", 1.0, volume=1).error_norm == pytest.approx(FACTOR * 1.0)

    def test_are_tensors_of_one_element_only(self) -> None:
        two = allowed("a:output.0", 0.0, volume=2)
        assert two.error_norm == pytest.approx(FACTOR * EPS * 10.0)


class TestZeroReference:
    def peers(self, **more: Yardstick) -> Tolerance:
        return allow(**{"a:output.0": yardstick(0.0, norm=0.0), **more})["a:output.0"]

    def test_takes_the_median_norm_of_its_kind(self) -> None:
        sizes = {"b": 1.0, "c": 30.0, "d": 100.0}
        tolerance = self.peers(
            **{f"{m}:output.0": yardstick(0.0, norm=n) for m, n in sizes.items()}
        )
        assert tolerance.error_norm == pytest.approx(FACTOR * EPS * 30.0)
        assert "since it is zero" in tolerance.source

    @pytest.mark.parametrize("other", ["b:input.0", "step1/b:output.0"])
    def test_takes_nothing_from_other_kinds_and_steps(self, other: str) -> None:
        assert self.peers(**{other: yardstick(0.0, norm=30.0)}).error_norm == 0.0

    def test_is_not_counted_among_its_own_peers(self) -> None:
        zeros = {f"z{index}:output.0": yardstick(0.0, norm=0.0) for index in range(5)}
        tolerance = self.peers(**zeros, **{"b:output.0": yardstick(0.0, norm=30.0)})
        assert tolerance.error_norm == pytest.approx(FACTOR * EPS * 30.0)


class TestLoss:
    def tolerance(self, loss_noise: float, **more: Yardstick) -> Tolerance:
        yardsticks = {":loss": yardstick(loss_noise, norm=2.0, volume=1), **more}
        return allow(**yardsticks)[":loss"]

    def last(self, change: float, slope: float, *, sequence: int = 5) -> dict[str, Yardstick]:
        return {
            "head:output.0": yardstick(change, sequence=sequence),
            "head:grad_output.0": yardstick(0.0, norm=slope),
        }

    def test_moves_as_far_as_the_noise_of_the_tensor_behind_it(self) -> None:
        tolerance = self.tolerance(0.0, **self.last(0.5, 4.0))
        assert tolerance.error_norm == pytest.approx(FACTOR * 0.5 * 4.0 / math.sqrt(100))
        assert tolerance.source == "3 x noise of the tensors it summarises"

    def test_keeps_its_own_noise_when_that_is_larger(self) -> None:
        assert self.tolerance(0.9, **self.last(0.5, 4.0)).error_norm == pytest.approx(FACTOR * 0.9)

    def test_keeps_the_floor_of_a_scalar_when_that_is_larger(self) -> None:
        assert self.tolerance(0.0, **self.last(1e-9, 1.0)).source == "3 x 16 eps"

    def test_looks_at_the_latest_output_with_a_gradient(self) -> None:
        earlier = {
            "a:output.0": yardstick(100.0, sequence=1),
            "a:grad_output.0": yardstick(0.0, norm=100.0),
            "metric:output.0": yardstick(100.0, sequence=9),
        }
        expected = self.tolerance(0.0, **self.last(0.5, 4.0))
        assert self.tolerance(0.0, **self.last(0.5, 4.0), **earlier) == expected
        latest = self.last(0.5, 4.0, sequence=0)
        assert self.tolerance(0.0, **latest, **earlier).error_norm > expected.error_norm

    def test_floor_is_for_the_loss_alone(self) -> None:
        found = allow(**{"a:input.0": yardstick(0.0, volume=1), **self.last(0.5, 4.0)})
        assert found["a:input.0"].source == "3 x 16 eps"


class TestGradNorm:
    def tolerance(self, norm_noise: float, **more: Yardstick) -> Tolerance:
        dtype = more["a:main_grad.weight"].dtype
        norm = yardstick(norm_noise, norm=5.0, volume=1, dtype=dtype)
        return allow(**{":grad_norm": norm, **more})[":grad_norm"]

    def gradients(self, *changes: float, dtype: str = "float32") -> dict[str, Yardstick]:
        return {
            f"{module}:main_grad.weight": yardstick(change, norm=size, dtype=dtype)
            for module, size, change in zip("ab", (3.0, 4.0), changes, strict=True)
        }

    def test_moves_as_far_as_the_noise_of_the_gradients_behind_it(self) -> None:
        along = math.hypot(3.0 * 0.5, 4.0 * 0.2) / math.sqrt(100)
        across = (0.5**2 + 0.2**2) / 2
        tolerance = self.tolerance(0.0, **self.gradients(0.5, 0.2))
        assert tolerance.error_norm == pytest.approx(FACTOR * (along + across) / 5.0)
        assert tolerance.source == "3 x noise of the tensors it summarises"

    @pytest.mark.parametrize(
        ("dtype", "floor"), [("float32", SCALAR_FLOOR_EPS * EPS), ("bfloat16", EPS_BF16)]
    )
    def test_without_noise_is_rounded_a_few_times(self, dtype: str, floor: float) -> None:
        tolerance = self.tolerance(0.0, **self.gradients(0.0, 0.0, dtype=dtype))
        assert tolerance.error_norm == pytest.approx(FACTOR * floor * 5.0)
        assert tolerance.source == "3 x rounding of a norm"

    def test_keeps_its_own_noise_when_that_is_larger(self) -> None:
        assert self.tolerance(0.9, **self.gradients(0.5, 0.2)).error_norm == pytest.approx(
            FACTOR * 0.9
        )

    def test_gives_its_share_to_what_is_clipped_by_it(self) -> None:
        norm, name = yardstick(0.5, norm=5.0, volume=1), "a:clipped_grad.weight"
        found = allow(**{":grad_norm": norm, name: yardstick(1e-9)})[name]
        assert found.error_norm == pytest.approx(FACTOR * 0.1 * 10.0)
        assert found.source == "tolerance of the gradient norm"
        wider = allow(**{":grad_norm": norm, name: yardstick(8.0)})[name]
        assert wider.error_norm == pytest.approx(FACTOR * 8.0)

    def test_of_another_step_gives_nothing(self) -> None:
        norm = yardstick(0.5, norm=5.0, volume=1)
        found = allow(**{"step1/:grad_norm": norm, "a:clipped_grad.weight": yardstick(1e-9)})
        assert found["a:clipped_grad.weight"].source == "3 x eps of its dtype"


class TestOptimizerState:
    def test_may_move_as_far_as_it_was_seen_to(self) -> None:
        assert allowed("a:optimizer.weight.exp_avg", 0.5).error_norm == pytest.approx(FACTOR * 0.5)
        assert allowed("a:optimizer.weight.exp_avg", 0.0).source == "3 x eps of its dtype"

    def test_a_count_of_steps_must_be_equal(self) -> None:
        tolerance = allowed("a:optimizer.weight.step", 0.0, volume=1)
        assert tolerance == Tolerance(error_norm=0.0, source="must be equal")


class TestUpdates:
    def test_may_jump_by_one_element(self) -> None:
        tolerance = allowed("a:param_after.weight", 0.01, jump=Jump(element=0.3, norm=0.1))
        assert tolerance.error_norm == pytest.approx(FACTOR * 0.3)
        assert tolerance.source == "3 x what rounding of the gradient does to the update"

    def test_with_more_noise_than_a_jump_keep_it(self) -> None:
        assert allowed(
            "a:param_after.weight", 0.5, jump=Jump(element=0.3, norm=0.1)
        ).error_norm == pytest.approx(FACTOR * 0.5)

    def test_are_the_parameters_of_the_next_step(self) -> None:
        found = allow(
            **{
                "a:param_after.weight": yardstick(0.01, jump=Jump(element=0.3, norm=0.1)),
                "step1/a:param.weight": yardstick(0.0),
                "step1/b:param.weight": yardstick(0.0),
            }
        )
        assert found["step1/a:param.weight"] == found["a:param_after.weight"]
        assert found["step1/b:param.weight"].source == "3 x eps of its dtype"


class TestTiny:
    def test_is_also_what_few_elements_carry(self) -> None:
        alone = replace(noise(1e-6), max_error=9e-7)
        found = allow(
            **{
                "a:output.0": replace(yardstick(1e-6), noise=(alone,)),
                "b:output.0": yardstick(0.2, norm=10.0),
            }
        )
        assert found["a:output.0"].source == "3 x noise of tensors of its kind"

    def test_takes_the_noise_of_its_kind_when_that_is_larger(self) -> None:
        found = allow(
            **{
                "a:output.0": yardstick(1e-6, volume=4),
                "b:output.0": yardstick(0.2, norm=10.0),
            }
        )
        assert found["a:output.0"].error_norm == pytest.approx(FACTOR * 0.02 * 10.0)
        assert found["a:output.0"].source == "3 x noise of tensors of its kind"

    def test_where_all_of_a_kind_are_tiny_their_draws_count_together(self) -> None:
        """A maximum is one element, and half of them stay where they were."""
        found = allow(
            **{
                "a:buffer.scale": yardstick(0.0, volume=3),
                "b:buffer.scale": yardstick(0.2, volume=3),
                "c:buffer.running_mean": yardstick(5.0),
            }
        )
        together = math.sqrt(0.02**2 / 2)
        assert found["a:buffer.scale"].error_norm == pytest.approx(FACTOR * together * 10.0)
        assert found["b:buffer.scale"].error_norm == pytest.approx(FACTOR * 0.2)

    def test_has_no_finer_limits(self) -> None:
        assert allowed("a:output.0", 0.5, volume=15).limits == ()
