"""Yardsticks side by side: the parts of a layout, what each yardstick moves, and the page."""

import math

import pytest
import torch

from benchmarks.yardsticks.kinds import YARDSTICKS, Yardstick, by_length, noisy
from benchmarks.yardsticks.page import page
from benchmarks.yardsticks.ratios import Measured, Ratio, largest, ratio
from benchmarks.yardsticks.subjects import CASES, Case, Gradients, gradients, in_parts, weighted
from ttrace.adapters.base import Adapter
from ttrace.capture.noise import Noise

SMALL = [
    Case(family=family, size=8 if unit == "px" else 64, unit=unit)
    for family, unit in dict.fromkeys((case.family, case.unit) for case in CASES)
]
EPS = torch.finfo(torch.float32).eps


def distance(one: Gradients, other: Gradients) -> float:
    """The largest over parameters, relative."""
    return max(float((one[k] - other[k]).norm() / other[k].norm()) for k in other)


@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.family)
@pytest.mark.parametrize("parts", [2, 4])
def test_a_layout_in_parts_computes_the_same(case: Case, parts: int) -> None:
    subject = case.subject(torch.float64, seed=1)
    whole = gradients(subject.model, subject.batch)
    assert distance(in_parts(subject, parts), whole) < 1e-12


def test_a_wrong_average_of_parts_would_be_found() -> None:
    subject = SMALL[0].subject(torch.float64, seed=1)
    whole = gradients(subject.model, subject.batch)
    x, y = subject.batch
    halves = [gradients(subject.model, (x[:4], y[:4])), gradients(subject.model, (x[4:], y[4:]))]
    assert distance(weighted(halves, [0.5, 0.4]), whole) > 1e-2


@pytest.mark.parametrize("yardstick", YARDSTICKS, ids=lambda yardstick: yardstick.name)
def test_a_yardstick_is_off_by_rounding_and_leaves_the_model_as_it_was(
    yardstick: Yardstick,
) -> None:
    subject = SMALL[0].subject(torch.float32, seed=1)
    before = gradients(subject.model, subject.batch)
    off = distance(yardstick.measure(subject, 1), before)
    assert EPS / 100 < off < 100 * EPS
    assert distance(gradients(subject.model, subject.batch), before) == 0


@pytest.mark.parametrize("family", ["written-out", "fused"])
def test_what_splits_the_batch_is_wrong_where_samples_depend_on_each_other(family: str) -> None:
    (case,) = (case for case in SMALL if family in case.family)
    subject = case.subject(torch.float64, seed=1)
    assert not subject.independent
    whole = gradients(subject.model, subject.batch)
    off = {each.name: distance(each.measure(subject, 1), whole) for each in YARDSTICKS}
    wrong = {each.name for each in YARDSTICKS if off[each.name] > 1e-6}
    assert wrong == {each.name for each in YARDSTICKS if each.splits_batch}


def test_weights_may_be_left_without_noise() -> None:
    model = torch.nn.Linear(4, 4)
    saved = model.weight.detach().clone()
    noise = Noise(1, Adapter(model))
    with noisy(model, noise, weights=False):
        assert torch.equal(model.weight, saved)
    with noisy(model, noise):
        assert not torch.equal(model.weight, saved)
    assert torch.equal(model.weight, saved)


def test_noise_by_length_grows_as_the_root_of_the_rows() -> None:
    ones = {"weight": torch.ones(64, 64, dtype=torch.float64)}
    few, many = (distance(by_length(ones, rows, seed=1), ones) for rows in (100, 10_000))
    assert many / few == pytest.approx(10, rel=0.01)
    assert few == pytest.approx(10 * torch.finfo(torch.float64).eps / math.sqrt(3), rel=0.05)


def test_the_ratio_is_in_units_of_the_yardstick_and_at_least_of_one_last_place() -> None:
    reference = {"a": torch.tensor([3.0, 4.0]), "b": torch.tensor([1.0, 1.0])}
    candidate = {"a": torch.tensor([3.0, 4.5]), "b": torch.tensor([1.0, 1.0 + 2 * EPS])}
    yardstick = {"a": torch.tensor([3.25, 4.0]), "b": reference["b"]}
    found = ratio(reference, candidate, yardstick)
    assert found.norm == pytest.approx(2.0)  # a; b is 2 eps of sqrt(2) eps
    assert found.element == pytest.approx(2.0)
    assert ratio(reference, reference, reference) == Ratio(norm=0.0, element=0.0)


def test_the_largest_of_no_ratios_is_none() -> None:
    assert largest([]) is None
    pair = [Ratio(norm=1.0, element=4.0), Ratio(norm=2.0, element=3.0)]
    assert largest(pair) == Ratio(norm=2.0, element=4.0)


def test_the_page_has_every_ratio_and_says_how_it_grows() -> None:
    found = [
        Measured(
            case=Case(family="LayerNorm", size=rows, unit="rows"),
            dtype=dtype,
            ratios={
                each.name: None
                if each.splits_batch
                else Ratio(norm=math.sqrt(rows) / 16, element=2.0)
                for each in YARDSTICKS
            },
        )
        for dtype in ("fp32", "bf16")
        for rows in (256, 4096, 65536)
    ]
    told = page(found)
    assert "| LayerNorm, 65,536 rows | 16 / 2.00 | 16 / 2.00 | n/a | 16 / 2.00 |" in told
    assert told.count("| LayerNorm, 256 rows | 1.00 / 2.00 |") == 2
    assert "| noise | 1.00 to 16 | +0.50 ± 0.00 | 1.00 to 16 | +0.50 ± 0.00 |" in told
    assert "| unequal halves | n/a |  | n/a |  |" in told
    assert "**Where samples are independent**" in told
    assert "**Where BatchNorm trains**" not in told
