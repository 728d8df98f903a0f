"""Limits finer than the norm, on yardsticks made by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from tests.support.yardsticks import EPS, FACTOR, FACTORS, key, noise, yardstick
from ttrace.analysis.tolerance import Factors, tolerances
from ttrace.analysis.tolerance.yardstick import Jump
from ttrace.core.statistics import Slice, Statistic, Statistics


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

    def gained(self, *gains: float) -> tuple[Statistics, ...]:
        """Runs of a reference of norm 10, whose square is 100."""
        return tuple(replace(self.run(), dot=100.0 * gain) for gain in gains)

    def test_what_all_runs_have_in_common_counts_once_and_not_as_spread(self) -> None:
        """A gain of 0.99 in all of them: a candidate may have that four times, and the spread."""
        found = self.limits(*self.gained(0.988, 0.99, 0.992))
        factor = FACTORS[Statistic.GAIN]
        assert found[Statistic.GAIN] == pytest.approx(4 * 0.1 + factor * 0.05, rel=1e-3)
        assert found[Statistic.GAIN] < self.limits(*self.gained(0.99))[Statistic.GAIN]

    def test_runs_that_differ_by_chance_have_their_deviation_as_unit(self) -> None:
        found = self.limits(*self.gained(0.992, 1.008, 0.992, 1.008))
        unit = 0.08 * math.sqrt(4 / 3)
        assert found[Statistic.GAIN] == pytest.approx(FACTORS[Statistic.GAIN] * unit, rel=1e-3)

    def test_a_reference_that_is_not_deterministic_is_its_own_noise(self) -> None:
        found = self.limits(*self.gained(0.995, 0.995), repeated=self.gained(0.99))
        assert found[Statistic.GAIN] == pytest.approx(FACTORS[Statistic.GAIN] * 0.1, rel=1e-3)

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
