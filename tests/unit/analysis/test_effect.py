"""What differs inside a module is harmless where all that leaves it is right, and counts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.made_results import tensor
from ttrace.analysis.effect import (
    enclosures_in,
    excused,
    harmless,
    probes,
    right,
    settled,
    suspected,
)
from ttrace.core.blame import Blame, Culprit, Phase, Reason, Stage
from ttrace.core.enclosure import Enclosure
from ttrace.core.finding import Topic
from ttrace.core.ids import TensorId
from ttrace.core.results import CheckResult, Outcome, Verdict

ATTENTION = Enclosure("layers.0.attention")
OTHER = Enclosure("layers.1.attention")
SCORES = "layers.0.attention.scores:output.0"
GIVEN = "layers.0.attention:output.0"
PASSED_BACK = "layers.0.attention:grad_input.0"
WEIGHT = "layers.0.attention.q:grad.weight"
EVERYTHING = (SCORES, GIVEN, PASSED_BACK, WEIGHT, "layers.0:output.0", ":output.0", ":loss")


def result(
    ratios: dict[str, float], *culprits: Culprit, known: tuple[str, ...] = EVERYTHING
) -> CheckResult:
    """All tensors pass at 0.1 of their tolerance, but for those of another ratio."""
    ids = dict.fromkeys((*known, *ratios))
    return CheckResult(
        reference="",
        candidate="",
        perturbed=(),
        tensors=tuple(
            tensor(TensorId.parse(f"step0/{text}"), order, ratios.get(text, 0.1))
            for order, text in enumerate(ids)
        ),
        culprits=culprits,
    )


def blamed(module: str, *evidence: str, phase: Phase = Phase.FORWARD) -> Culprit:
    return Culprit(
        blame=Blame.of(module, phase=phase),
        reason=Reason.GIVEN_REFERENCE_VALUES,
        evidence=tuple(TensorId.parse(f"step0/{text}") for text in evidence),
    )


INNER = blamed("layers.0.attention.scores", SCORES)


def test_what_does_not_leave_a_module_makes_it_suspected() -> None:
    assert suspected(result({SCORES: 1e5}), result({SCORES: 1e5}, INNER)) == (ATTENTION,)


def test_a_list_of_modules_is_no_enclosure_as_it_gives_nothing_itself() -> None:
    """Else all that its modules give would lie inside, and only weight gradients would leave."""
    wrong = ("layers.0:output.0", "layers.0:grad_output.0", ":output.0", ":loss")
    plain = result(dict.fromkeys(wrong, 1e5), known=(*EVERYTHING, "layers.0:grad_output.0"))
    assert suspected(plain, result({GIVEN: 1e5}, blamed("layers.0", "layers.0:output.0"))) == ()


def test_an_error_that_leaves_every_module_makes_none_suspected() -> None:
    wrong = dict.fromkeys(EVERYTHING, 1e5)
    assert suspected(result(wrong), result({SCORES: 1e5}, INNER)) == ()


def test_several_wrong_points_of_one_module_make_it_suspected_without_a_plain_comparison() -> None:
    undone = blamed("layers.0.attention", GIVEN)
    assert suspected(None, result({SCORES: 1e5, GIVEN: 1e5}, INNER, undone)) == (ATTENTION,)
    assert suspected(None, result({SCORES: 1e5}, INNER)) == ()


def test_the_same_module_of_a_layer_that_an_earlier_mistake_spoils_is_suspected_too() -> None:
    later = "layers.1.attention.scores:output.0"
    spoilt = (later, "layers.1.attention:output.0", ":output.0", ":loss")
    plain = result({SCORES: 1e5, **dict.fromkeys(spoilt, 1e5)})
    isolated = result({SCORES: 1e5}, INNER, blamed("layers.1.attention.scores", later))
    assert suspected(plain, isolated) == (ATTENTION, OTHER)


def test_the_least_wrong_tensor_inside_is_probed_with_an_error_of_its_size() -> None:
    inner = "layers.0.attention.softmax:output.0"
    plain = result({SCORES: 1e6, inner: 1e5})
    found = probes([ATTENTION], plain, None)
    assert list(found) == [TensorId.parse(f"step0/{inner}")]
    assert found[TensorId.parse(f"step0/{inner}")] == pytest.approx(1e5 * 3e-6 / 10)


@pytest.mark.parametrize("text", [GIVEN, PASSED_BACK, WEIGHT])
def test_a_module_that_gives_something_wrong_is_not_right(text: str) -> None:
    isolated = result({SCORES: 1e5}, INNER)
    assert right([ATTENTION], result({SCORES: 1e5}), isolated) == (ATTENTION,)
    assert right([ATTENTION], result({text: 2.0}), isolated) == ()


def test_a_sum_that_nobody_makes_leaves_a_module_that_made_its_terms() -> None:
    summed = WEIGHT.replace(":grad.", ":main_grad.")
    assert right([ATTENTION], result({summed: 1e5}), result({SCORES: 1e5}, INNER)) == ()
    elsewhere = result({SCORES: 1e5, summed: 1e5}, INNER)
    assert right([ATTENTION], result({summed: 1e5}), elsewhere) == (ATTENTION,)


def test_harmless_is_what_would_have_shown_or_has_no_effect_at_all() -> None:
    shows = result({GIVEN: 7.0})
    hides = result({GIVEN: 2.0})  # it would show, but not clearly
    nothing = result(dict.fromkeys((GIVEN, PASSED_BACK, WEIGHT), 0.0))
    assert harmless([ATTENTION], shows) == (ATTENTION,)
    assert harmless([ATTENTION], hides) == ()
    assert harmless([ATTENTION], result({})) == ()
    assert harmless([ATTENTION], nothing) == (ATTENTION,)


def test_a_settled_result_blames_nothing_inside_and_says_so() -> None:
    isolated = result({SCORES: 1e5, GIVEN: 1e5}, INNER, blamed("layers.0.attention", GIVEN))
    found = settled(isolated, result({}), [ATTENTION], [ATTENTION])
    assert found.outcome is Outcome.EQUIVALENT
    assert found[f"step0/{SCORES}"].verdict is Verdict.HARMLESS
    assert found[f"step0/{GIVEN}"].verdict is Verdict.PASS
    assert [note.topic for note in found.notes] == [Topic.HARMLESS]
    assert enclosures_in(found) == (ATTENTION,)


def test_a_mistake_beside_the_harmless_stays_blamed_and_its_harmless_part_does_not() -> None:
    later = blamed("layers.1.attention.scores", "layers.1.attention.scores:output.0")
    guilty = blamed("layers.1.attention", "layers.1.attention:output.0")
    isolated = result({SCORES: 1e5, "layers.1.attention.scores:output.0": 1e5}, INNER, later)
    kept = result({"layers.1.attention:output.0": 30.0}, guilty)
    found = settled(isolated, kept, [ATTENTION, OTHER], [ATTENTION])
    assert found.culprits == (guilty,)
    assert found.outcome is Outcome.NOT_EQUIVALENT


def test_where_nothing_is_harmless_nothing_changes() -> None:
    isolated = result({SCORES: 1e5}, INNER)
    assert settled(isolated, result({}), [ATTENTION], []) == isolated
    assert excused(isolated, []) is isolated


def test_what_a_module_lacks_is_blamed_on_what_it_gives() -> None:
    lacking = blamed("layers.0.attention.scores", SCORES, phase=Phase.MISSING)
    guilty = blamed("layers.0.attention", GIVEN)
    found = settled(result({}, lacking), result({GIVEN: 9.0}, guilty), [ATTENTION], [])
    assert found.culprits == (guilty,)


def test_data_that_has_no_effect_is_not_blamed() -> None:
    """The model is not told a number that it would only divide by; its caller does not, either."""
    told = ":input.count"
    data = Culprit(
        blame=Blame.at(Stage.MODEL_INPUT, Phase.INPUTS),
        reason=Reason.OTHER_DATA,
        evidence=(TensorId.parse(f"step0/{told}"),),
    )
    undivided = replace(
        data,
        blame=Blame.at(Stage.GRADIENT_REDUCTION, Phase.MAIN_GRADIENT),
        evidence=(TensorId.parse("step0/layers.1:main_grad.weight"),),
    )
    wrong = result({told: 1e5, "layers.1:main_grad.weight": 1e5}, data, undivided)
    assert excused(wrong, [Enclosure(None)]).culprits == (undivided,)
