"""How far rounding may move a tensor: every rule by itself, on yardsticks made by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from ttrace.analysis.tolerance import SCALAR_FLOOR_EPS, Factors, Yardstick, tolerances
from ttrace.analysis.tolerance.factors import BIAS
from ttrace.analysis.tolerance.jump import Jump
from ttrace.core.ids import TensorId
from ttrace.core.readings import Statistic
from ttrace.core.results import Tolerance
from ttrace.core.statistics import Slice, Statistics

FACTORS = {statistic: Factors(judged=1).of(statistic) for statistic in Statistic}
FACTOR = FACTORS[Statistic.NORM]
EPS = torch.finfo(torch.float32).eps
EPS_BF16 = torch.finfo(torch.bfloat16).eps


def noise(error: float, norm: float = 10.0) -> Statistics:
    return Statistics(
        count=100,
        error_norm=error,
        reference_norm=norm,
        candidate_norm=norm,
        dot=norm * norm,
        max_error=error / 4,
        error_sum=0.0,
        nonfinite_reference=0,
        nonfinite_candidate=0,
        unequal=1 if error else 0,
    )


def yardstick(*errors: float, norm: float = 10.0, **more: Any) -> Yardstick:
    plain = Yardstick(
        dtype="float32", volume=100, sequence=0, noise=tuple(noise(e, norm) for e in errors)
    )
    return replace(plain, **more)


def allow(**yardsticks: Yardstick) -> dict[str, Tolerance]:
    """By id; of step 0 where an id does not name its step."""
    found = tolerances({key(name): value for name, value in yardsticks.items()})
    return {str(id_).removeprefix("step0/"): tolerance for id_, tolerance in found.items()}


def key(name: str) -> TensorId:
    return TensorId.parse(name if name.startswith("step") else f"step0/{name}")


def allowed(name: str, *errors: float, norm: float = 10.0, **more: Any) -> Tolerance:
    (tolerance,) = allow(**{name: yardstick(*errors, norm=norm, **more)}).values()
    return tolerance


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


def peaked(error: float, *, norm: float, peak: float, **more: Any) -> Yardstick:
    """With all readings, of a matrix of 10 by 10."""
    rows = (Slice(dims=(0,), index=(3,), error_norm=error / 3),)
    found = replace(noise(error, norm), peak=peak, slices=rows)
    return replace(yardstick(error), noise=(found,), shape=(10, 10), **more)


def limits_of(tolerance: Tolerance) -> dict[Statistic, float]:
    return {limit.statistic: limit.allowed for limit in tolerance.limits}


class TestInherited:
    """A gradient of norm 10 and peak 4 that may be off by 3 x 0.1."""

    gradient = peaked(0.1, norm=10.0, peak=4.0)

    def both(self, name: str, found: Yardstick, *, isolated: bool = False) -> list[Tolerance]:
        known = {key("a:main_grad.weight"): self.gradient, key(name): found}
        allowed = tolerances(known, isolated=isolated)
        return [allowed[id_] for id_ in known]

    @pytest.mark.parametrize(
        ("name", "peak", "slope"),
        [
            ("a:clipped_grad.weight", 2.0, 0.5),
            ("a:optimizer.weight.exp_avg", 0.4, 0.1),
            ("a:optimizer.weight.exp_avg_sq", 0.016, 2 * 0.004),
            ("a:optimizer.weight.sum", 16.0, 2 * 4.0),
        ],
    )
    def test_what_follows_from_a_gradient_moves_with_it(
        self, name: str, peak: float, slope: float
    ) -> None:
        of_gradient, found = self.both(name, peaked(1e-5, norm=5.0, peak=peak))
        assert found.error_norm == pytest.approx(slope * of_gradient.error_norm)
        assert found.source == "tolerance of the gradient"
        expected = {k: slope * v for k, v in limits_of(of_gradient).items()}
        assert limits_of(found) == pytest.approx(expected)

    def test_but_not_in_an_isolated_run(self) -> None:
        name = "a:optimizer.weight.exp_avg"
        _, found = self.both(name, peaked(1e-5, norm=5.0, peak=0.4), isolated=True)
        assert found.error_norm == pytest.approx(FACTOR * 1e-5)

    def test_a_state_of_another_shape_keeps_its_own(self) -> None:
        name = "a:optimizer.weight.row_var"
        other = replace(peaked(1e-5, norm=5.0, peak=0.4), shape=(10,), volume=16)
        assert self.both(name, other)[1].error_norm == pytest.approx(FACTOR * 1e-5)

    def test_a_state_carries_what_the_step_before_left_in_it(self) -> None:
        name, state = "a:optimizer.weight.exp_avg", peaked(1e-5, norm=5.0, peak=0.4)
        known = {
            key(f"step{step}/{what}"): found
            for step in (0, 1)
            for what, found in (("a:main_grad.weight", self.gradient), (name, state))
        }
        allowed = tolerances(known)
        first, second = (allowed[key(f"step{step}/{name}")].error_norm for step in (0, 1))
        assert second == pytest.approx(2 * first)


class TestLastPlace:
    def test_an_element_may_always_move_by_one_unit(self) -> None:
        noisy = peaked(EPS, norm=10.0, peak=8.0)
        quiet = replace(noisy, noise=(replace(noisy.noise[0], max_error=0.1 * EPS),))
        found = limits_of(tolerances({key("a:grad.weight"): quiet})[key("a:grad.weight")])
        assert Statistic.ELEMENT not in found or found[Statistic.ELEMENT] >= 8 * EPS

    def test_a_row_by_half_a_unit_of_each_of_its_elements(self) -> None:
        noisy = peaked(10 * EPS, norm=10.0, peak=1.0)
        quiet = replace(
            noisy,
            noise=(
                replace(
                    noisy.noise[0], slices=(Slice(dims=(0,), index=(3,), error_norm=0.01 * EPS),)
                ),
            ),
        )
        found = limits_of(tolerances({key("a:grad.weight"): quiet})[key("a:grad.weight")])
        assert found[Statistic.ROW] == pytest.approx(EPS / 2 * math.sqrt(10))


class TestFactors:
    def test_are_what_the_rate_of_false_alarms_leaves(self) -> None:
        assert [round(FACTORS[statistic], 1) for statistic in Statistic][:6] == [
            *(3.0, 4.0, 4.0, 6.0),
            *(10.2, 10.2),
        ]

    @pytest.mark.parametrize("statistic", [Statistic.NORM, Statistic.ELEMENT])
    def test_fall_with_the_number_of_perturbed_runs(self, statistic: Statistic) -> None:
        found = [Factors(judged=1).of(statistic, draws) for draws in (1, 2, 5, 100)]
        assert found == sorted(found, reverse=True)
        assert found[-1] > BIAS

    def test_grow_with_what_is_judged(self) -> None:
        few, many = (Factors(judged=judged).of(Statistic.NORM) for judged in (6000, 600_000))
        assert few < many < 1.1 * few


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

    def test_has_no_finer_limits(self) -> None:
        assert allowed("a:output.0", 0.5, volume=15).limits == ()


class TestFiner:
    """Noise of norm 0.5 over 100 elements: 0.05 in any one direction, if it is independent."""

    def limits(
        self, *runs: Statistics, isolated: bool = False, **more: Any
    ) -> dict[Statistic, float]:
        name = str(more.pop("name", "a:output.0"))
        found = tolerances(
            {key(name): replace(yardstick(0.5), noise=runs, **more)}, isolated=isolated
        )
        return {limit.statistic: limit.allowed for limit in found[key(name)].limits}

    def run(self, **more: Any) -> Statistics:
        rows = (Slice(dims=(0,), index=(3,), error_norm=0.1),)
        return replace(noise(0.5), max_error=0.06, slices=rows, **more)

    def test_rows_and_elements_are_a_multiple_of_their_noise(self) -> None:
        found = self.limits(self.run())
        assert found[Statistic.ROW] == pytest.approx(FACTORS[Statistic.ROW] * 0.1)
        assert found[Statistic.ELEMENT] == pytest.approx(FACTORS[Statistic.ELEMENT] * 0.06)

    def test_the_mean_of_several_runs_counts(self) -> None:
        larger = replace(self.run(), max_error=0.06 * 1.44)
        factor = Factors(judged=1).of(Statistic.ELEMENT, draws=2)
        found = self.limits(self.run(), larger)
        assert found[Statistic.ELEMENT] == pytest.approx(factor * 0.06 * 1.2)

    def test_a_gain_near_zero_has_the_unit_of_independent_errors(self) -> None:
        found = self.limits(self.run())
        assert found[Statistic.GAIN] == pytest.approx(FACTORS[Statistic.GAIN] * 0.05)
        assert found[Statistic.SHIFT] == pytest.approx(FACTORS[Statistic.SHIFT] * 0.05)

    def test_a_gain_is_shared_by_tensors_of_one_kind(self) -> None:
        """One tensor shows 0.1, which is 2 units; the other none: together sqrt(2)."""
        shown = replace(self.run(), dot=100.0 + 0.1 * 10.0)
        found = tolerances(
            {
                key("a:output.0"): replace(yardstick(0.5), noise=(self.run(),)),
                key("b:output.0"): replace(yardstick(0.5), noise=(shown,)),
                key("c:input.0"): replace(yardstick(0.5), noise=(self.run(),)),
            }
        )
        gains = {
            id_.module: limit.allowed
            for id_, tolerance in found.items()
            for limit in tolerance.limits
            if limit.statistic is Statistic.GAIN
        }
        unit = FACTORS[Statistic.GAIN] * 0.05
        assert gains["a"] == pytest.approx(math.sqrt(2) * unit)
        assert gains["b"] == pytest.approx(2 * unit)
        assert gains["c"] == pytest.approx(unit)

    def test_an_isolated_run_is_judged_by_the_same_factors(self) -> None:
        assert self.limits(self.run()) == self.limits(self.run(), isolated=True)

    def test_noise_far_below_the_floor_says_nothing_of_rows(self) -> None:
        few = replace(self.run(), error_norm=EPS)
        assert self.limits(few) == {}

    def test_limits_that_cannot_bind_are_left_out(self) -> None:
        whole = replace(self.run(), max_error=0.5)
        assert Statistic.ELEMENT not in self.limits(whole)

    def test_a_jump_of_an_update_may_be_one_element(self) -> None:
        found = self.limits(
            self.run(), name="a:param_after.weight", jump=Jump(element=0.1, norm=0.0)
        )
        assert found[Statistic.ELEMENT] == pytest.approx(FACTORS[Statistic.ELEMENT] * 0.1)

    def test_what_is_scaled_by_the_norm_may_be_off_as_it_is(self) -> None:
        norm = yardstick(0.005, norm=5.0, volume=1)
        clipped = replace(yardstick(0.5), noise=(self.run(peak=1.0),), shape=(10, 10))
        found = tolerances({key(":grad_norm"): norm, key("a:clipped_grad.w"): clipped})
        limits = {x.statistic: x.allowed for x in found[key("a:clipped_grad.w")].limits}
        share, row = FACTOR * 0.001, 1.0 * math.sqrt(10)
        assert limits[Statistic.ROW] == pytest.approx(FACTORS[Statistic.ROW] * 0.1 + share * row)
