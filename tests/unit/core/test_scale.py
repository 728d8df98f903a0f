"""A measured scale is taken for the number that a program holds."""

import pytest

from ttrace.core.scale import written_scale


@pytest.mark.parametrize("written", [1024.0, 2.0**16, 1 / 1024, 3072.0, 1000.0, 1 / 1000, 0.6, 1.5])
@pytest.mark.parametrize("noise", [0.0, 2e-7, -2e-7])
def test_noise_of_a_measured_scale_is_rounded_away(written: float, noise: float) -> None:
    assert written_scale(written * (1 + noise)) == written


@pytest.mark.parametrize("power", [0.5, 128.0])
def test_a_power_of_two_is_known_in_bf16_too(power: float) -> None:
    assert written_scale(power * 1.001) == power


@pytest.mark.parametrize("gain", [3.14159265, 1234.56789, 1 / 1234.56789, 1.01 * 1024])
def test_what_nobody_would_write_stays_as_it_was_measured(gain: float) -> None:
    assert written_scale(gain) == pytest.approx(gain, rel=1e-15)
