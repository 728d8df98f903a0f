"""Which segments of an isolated run are named; results are made by hand, in execution order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from tests.support.isolated_results import named, wrong_by
from tests.support.plain_results import ROUNDED, STEP, id_of
from ttrace.analysis.localize import localize_isolated
from ttrace.core.blame import Blame, Phase, Stage
from ttrace.core.results import TensorResult, Verdict


@pytest.mark.parametrize(
    ("wrong", "places"),
    [
        (
            "a:output.0 b.d:output.0",
            [Blame.of("a", phase=Phase.FORWARD), Blame.of("b.d", phase=Phase.FORWARD)],
        ),
        ("b.d:input.0", [Blame.of("b", phase=Phase.FORWARD)]),
        ("b.c:grad_output.0", [Blame.of("b", phase=Phase.BACKWARD)]),
        # one place, not two
        ("e:output.0 e:grad_input.0 e:grad.weight", [Blame.of("e", phase=Phase.FORWARD)]),
        ("e:grad_input.0 e:grad.weight e:main_grad.weight", [Blame.of("e", phase=Phase.BACKWARD)]),
        # but only of the same module
        (
            "e:grad_input.0 a:grad.weight",
            [Blame.of("e", phase=Phase.BACKWARD), Blame.of("a", phase=Phase.WEIGHT_GRADIENT)],
        ),
        ("a:grad.weight a:main_grad.weight", [Blame.of("a", phase=Phase.WEIGHT_GRADIENT)]),
        ("a:main_grad.weight", [Blame.of("a", phase=Phase.GRADIENT_REDUCTION)]),
        (
            "a:accumulated_grad.weight a:main_grad.weight",
            [Blame.of("a", phase=Phase.GRADIENT_ACCUMULATION)],
        ),
        (
            "a:accumulated_grad.weight a:main_grad.weight e:main_grad.weight",
            [
                Blame.of("a", phase=Phase.GRADIENT_ACCUMULATION),
                Blame.of("e", phase=Phase.GRADIENT_REDUCTION),
            ],
        ),
        ("a:grad.weight a:accumulated_grad.weight", [Blame.of("a", phase=Phase.WEIGHT_GRADIENT)]),
    ],
)
def test_every_segment_that_is_itself_wrong(wrong: str, places: list[Blame]) -> None:
    assert named(wrong) == places


@pytest.mark.parametrize(
    ("calls", "caller"),
    [
        ("b:input.0 b.c:input.0 b.c:output.0 b:output.0", "b"),
        ("b.c:input.0 b.c:output.0 b:input.0 b:output.0", ""),  # the model calls a part of b
        ("b.c:input.0 b.c:output.0 b:output.0", "b"),  # which got no tensor
    ],
)
def test_the_code_around_a_module_is_that_of_who_called_it(calls: str, caller: str) -> None:
    results = [
        TensorResult(id=id_of(name), verdict=verdict, order=order, statistics=ROUNDED)
        for order, (name, verdict) in enumerate(
            [
                (":input.0", Verdict.PASS),
                *((name, Verdict.PASS) for name in calls.split()),
                ("b.c:grad_output.0", Verdict.CONFLICT),
            ]
        )
    ]
    (culprit,) = localize_isolated(results)
    assert culprit.blame == Blame.of(caller, phase=Phase.BACKWARD)


def test_a_gradient_that_was_not_summed_is_another_mistake_than_a_wrong_backward() -> None:
    wrong = {"e:grad_input.0": Verdict.MISMATCH, "e:grad.weight": Verdict.CONFLICT}
    assert named(wrong) == [
        Blame.of("e", phase=Phase.GRADIENT_REDUCTION),  # which no rounding makes
        Blame.of("e", phase=Phase.BACKWARD),
    ]


def test_the_strongest_evidence_comes_first_and_equal_ones_as_they_were_executed() -> None:
    ratios = {
        "a:output.0": 1.07,
        "b.c:output.0": 240_000.0,
        "b.d:output.0": 12.0,
        "e:output.0": 9e3,
    }
    places = [Blame.of(module, phase=Phase.FORWARD) for module in ("b.c", "e", "b.d", "a")]
    assert [culprit.blame for culprit in localize_isolated(wrong_by(ratios))] == places


def test_a_culprit_of_several_steps_shows_the_step_in_which_it_is_strongest() -> None:
    results = [*wrong_by({"a:output.0": 1.07}), *wrong_by({"a:output.0": 300.0}, step=1)]
    (culprit,) = localize_isolated(results)
    assert culprit.steps == (0, 1)
    assert culprit.evidence == (id_of("a:output.0", 1),)


def test_updates_by_hand_follow_from_wrong_gradients() -> None:
    """No gradient is overwritten between reduction and update, as an optimizer's are."""
    wrong = "a:main_grad.weight a:param_after.weight"
    reduction, update = (
        Blame.of("a", phase=phase) for phase in (Phase.GRADIENT_REDUCTION, Phase.UPDATE)
    )
    assert named(wrong) == [reduction, update]
    assert named(wrong, by_hand=True) == [reduction]
    assert named("a:param_after.weight", by_hand=True) == [update]


def test_a_block_is_blamed_for_what_is_inside_where_only_blocks_were_given_values() -> None:
    blocks = frozenset({"", "a", "b", "e"})
    assert named("b:output.0 b.c:grad.weight", blocks) == [Blame.of("b", phase=Phase.FORWARD)]
    assert named("b.c:grad.weight", blocks) == [Blame.of("b", phase=Phase.WEIGHT_GRADIENT)]
    assert named("b.c:grad.weight") == [Blame.of("b.c", phase=Phase.WEIGHT_GRADIENT)]


def off_by(errors: Mapping[str, float]) -> list[Blame]:
    """Whom an isolated run names where these are off by so much, relative to the reference."""
    results = [
        TensorResult(
            id=id_of(name),
            verdict=Verdict.MISMATCH if name in errors else Verdict.PASS,
            order=order,
            statistics=replace(ROUNDED, error_norm=errors.get(name, 0.0) * 2.0, reference_norm=2.0),
        )
        for order, name in enumerate(STEP)
    ]
    return [culprit.blame for culprit in localize_isolated(results)]


@pytest.mark.parametrize(
    ("forward", "backward", "phases"),
    [
        (1e-3, 0.5, [Phase.FORWARD, Phase.BACKWARD]),
        (1e-1, 0.5, [Phase.FORWARD]),
        (1e-5, 0.03, [Phase.FORWARD]),
    ],
    ids=["far larger", "about as large", "a few signs"],
)
def test_a_wrong_forward_hides_no_backward_that_is_far_more_wrong(
    forward: float, backward: float, phases: list[Phase]
) -> None:
    named = off_by({"e:output.0": forward, "e:grad_input.0": backward})
    assert named == [Blame.of("e", phase=each) for each in phases]


def test_a_wrong_loss_explains_its_gradient_however_wrong_that_is() -> None:
    named = off_by({":loss": 1e-4, ":grad_output.0": 0.5})
    assert named == [Blame.at(Stage.LOSS, Phase.FORWARD)]
