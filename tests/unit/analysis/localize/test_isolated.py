"""Which segments of an isolated run are named; results are made by hand, in execution order."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tests.unit.analysis.localize.test_plain import ROUNDED, STEP, id_of
from ttrace.analysis.localize import localize_isolated
from ttrace.core.results import TensorResult, Verdict


def named(wrong: Mapping[str, Verdict] | str) -> list[tuple[str, str]]:
    if isinstance(wrong, str):
        wrong = dict.fromkeys(wrong.split(), Verdict.MISMATCH)
    assert set(wrong) <= set(STEP)
    results = [
        TensorResult(
            id=id_of(name),
            verdict=wrong.get(name, Verdict.PASS),
            order=order,
            statistics=ROUNDED,
            ratio=7.0 if name in wrong else 0.1,
        )
        for order, name in enumerate(STEP)
    ]
    return [(culprit.where, culprit.part) for culprit in localize_isolated(results)]


@pytest.mark.parametrize(
    ("wrong", "places"),
    [
        ("a:output.0 b.d:output.0", [("a", "forward"), ("b.d", "forward")]),
        ("b.d:input.0", [("b", "forward")]),
        ("b.c:grad_output.0", [("b", "backward")]),
        # one place, not two
        ("e:output.0 e:grad_input.0 e:grad.weight", [("e", "forward")]),
        ("e:grad_input.0 e:grad.weight e:main_grad.weight", [("e", "backward")]),
        # but only of the same module
        ("e:grad_input.0 a:grad.weight", [("e", "backward"), ("a", "weight gradient")]),
        ("a:grad.weight a:main_grad.weight", [("a", "weight gradient")]),
        ("a:main_grad.weight", [("a", "gradient reduction")]),
        ("a:accumulated_grad.weight a:main_grad.weight", [("a", "gradient accumulation")]),
        (
            "a:accumulated_grad.weight a:main_grad.weight e:main_grad.weight",
            [("a", "gradient accumulation"), ("e", "gradient reduction")],
        ),
        ("a:grad.weight a:accumulated_grad.weight", [("a", "weight gradient")]),
    ],
)
def test_every_segment_that_is_itself_wrong(wrong: str, places: list[tuple[str, str]]) -> None:
    assert named(wrong) == places


def test_a_gradient_that_was_not_summed_is_another_mistake_than_a_wrong_backward() -> None:
    wrong = {"e:grad_input.0": Verdict.MISMATCH, "e:grad.weight": Verdict.CONFLICT}
    assert named(wrong) == [("e", "backward"), ("e", "gradient reduction")]
