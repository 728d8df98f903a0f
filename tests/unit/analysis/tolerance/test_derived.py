"""What follows from gradients inherits their tolerance; one unit in the last place is allowed."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from tests.support.yardsticks import EPS, FACTOR, FACTORS, key, limits_of, peaked
from ttrace.analysis.tolerance import Factors, Yardstick, tolerances
from ttrace.analysis.tolerance.factors import BIAS
from ttrace.core.statistics import Slice, Statistic, Tolerance


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
    def limits(self, *, peak: float) -> dict[Statistic, float]:
        """Of noise in the last bits, of which rows and elements show nearly nothing."""
        noisy = peaked(10 * EPS, norm=10.0, peak=peak)
        row = Slice(dims=(0,), index=(3,), error_norm=0.01 * EPS)
        quiet = replace(noisy.noise[0], slices=(row,), max_error=0.01 * EPS)
        id_ = key("a:grad.weight")
        return limits_of(tolerances({id_: replace(noisy, noise=(quiet,))})[id_])

    def test_an_element_may_always_move_by_one_unit(self) -> None:
        assert self.limits(peak=4.0)[Statistic.ELEMENT] == pytest.approx(4 * EPS)

    def test_so_may_the_row_that_has_it(self) -> None:
        assert self.limits(peak=4.0)[Statistic.ROW] == pytest.approx(4 * EPS)

    def test_a_row_of_usual_size_may_by_half_a_unit_of_each_of_its_elements(self) -> None:
        usual = 10.0 / math.sqrt(10)
        assert self.limits(peak=1.1)[Statistic.ROW] == pytest.approx(EPS * usual / 2)


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
