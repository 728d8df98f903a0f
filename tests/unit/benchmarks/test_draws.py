"""What more perturbed runs give: ratios of held-out draws, and what theory says of them."""

import math
import random
from collections.abc import Sequence

import pytest

from benchmarks.power.draws import (
    MOST,
    RUNS,
    SHOWN,
    Drawn,
    held_out,
    means,
    own_spreads,
    readings_of,
    summary,
    theory,
)
from ttrace.core.ids import Kind, TensorId
from ttrace.core.readings import Statistic
from ttrace.core.results import TensorResult, Verdict
from ttrace.core.statistics import Slice, Statistics


def made(error: float, *, largest: float = 0.1) -> Statistics:
    return Statistics(
        count=256,
        error_norm=error,
        reference_norm=100.0,
        candidate_norm=100.0,
        dot=1e4,
        max_error=largest * error,
        error_sum=0.0,
        nonfinite_reference=0,
        nonfinite_candidate=0,
        unequal=256,
        slices=(Slice(dims=(0,), index=(3,), error_norm=error / 2),),
    )


def tensor(kind: Kind = Kind.OUTPUT, shape: Sequence[int] = (16, 16)) -> TensorResult:
    return TensorResult(
        id=TensorId(step=0, module="layers.0", kind=kind, slot="0"),
        verdict=Verdict.PASS,
        order=0,
        shape=tuple(shape),
        dtype="float32",
        statistics=made(3.0),
    )


def test_every_reading_of_a_tensor_has_its_draws_and_the_candidate() -> None:
    found = {d.statistic: d for d in readings_of(tensor(), [made(1.0), made(2.0)])}
    assert set(found) == {Statistic.NORM, Statistic.ROW, Statistic.ELEMENT}
    assert found[Statistic.NORM].draws == (1.0, 2.0)
    assert found[Statistic.ROW].draws == (0.5, 1.0)
    assert found[Statistic.ROW].candidate == 1.5


@pytest.mark.parametrize(
    ("left_out", "noise"),
    [
        (tensor(Kind.PARAM), [made(1.0), made(2.0)]),
        (tensor(Kind.PARAM_AFTER), [made(1.0), made(2.0)]),
        (tensor(shape=(3, 5)), [made(1.0), made(2.0)]),
        (tensor(), [made(1.0), made(2.0, largest=0.9)]),
        (tensor(), [made(1.0), made(0.0)]),
    ],
    ids=["parameter", "updated", "small", "carried by few", "exact once"],
)
def test_what_jumps_is_tiny_or_exact_is_left_out(
    left_out: TensorResult, noise: list[Statistics]
) -> None:
    assert list(readings_of(left_out, noise)) == []


def test_a_draw_is_never_in_the_mean_that_it_is_compared_with() -> None:
    assert means([1.0, 2.0, 8.0], 1) == pytest.approx([2.0, 8.0, 1.0])
    assert means([1.0, 2.0, 8.0], 2) == pytest.approx([4.0, math.sqrt(8), math.sqrt(2)])
    assert held_out([1.0, 2.0, 8.0], 2) == pytest.approx([1 / 4, 1 / math.sqrt(2), 8 / 2**0.5])


def test_theory_falls_as_the_root_of_one_and_one_over_n() -> None:
    one, four = (math.log(theory(6000, 0.1, count)) for count in (1, 4))
    assert one / four == pytest.approx(math.sqrt(2 / 1.25))


def test_equal_spreads_are_one_spread() -> None:
    assert own_spreads(12, [0.1] * 50, 3) == pytest.approx(theory(12 * 50, 0.1, 3))


def test_one_wide_spread_among_many_narrow_ones_makes_the_largest_ratio() -> None:
    spreads = [0.01] * 99 + [0.2]
    pooled = math.sqrt(sum(s * s for s in spreads) / len(spreads))
    assert own_spreads(12, spreads, 1) > 1.2 * theory(12 * 100, pooled, 1)
    assert own_spreads(12, [0.0, 0.1], 1) == own_spreads(12, [0.1], 1)


def test_draws_of_one_spread_are_as_far_apart_as_theory_says() -> None:
    draw = random.Random(1)
    drawn = [
        Drawn(
            statistic=statistic,
            draws=tuple(math.exp(draw.gauss(0, 0.1)) for _ in range(RUNS)),
            candidate=0.5,
        )
        for statistic in SHOWN
        for _ in range(200)
    ]
    found = summary(drawn)
    for statistic in SHOWN:
        lines = found[statistic.value]
        assert lines["readings"] == 200
        assert lines["spread"] == pytest.approx(0.1, rel=0.1)
        assert len(lines["held out"]) == MOST
        for measured, expected in zip(lines["held out"], lines["theory"], strict=True):
            # The largest of thousands is a Gumbel variable, a third of a deviation wide.
            assert math.log(measured) == pytest.approx(math.log(expected), rel=0.3)
        assert max(lines["candidate"]) < min(lines["held out"]) < min(lines["factor"])
