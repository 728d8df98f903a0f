"""The verdict card: where, what, how sure, which ranks, what next."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from tests.support.made_results import made
from ttrace.core.blame import Blame, Diagnosis, Expected, Mistake, Nearest, Phase, Reason, Stage
from ttrace.core.evidence import ElementError, Scalar
from ttrace.core.finding import Finding, Note, Specifics, Topic
from ttrace.core.mesh import NO_MESH
from ttrace.core.record import Difference, Owner
from ttrace.core.results import CheckResult, Strength, Verdict
from ttrace.report.card import Card, cards
from ttrace.report.wording import listed_ranks, mesh_of

RESULT = made(2, wrong_layer=1)


def card(result: CheckResult = RESULT, **changes: Any) -> Card:
    """Of the culprit with changes."""
    (culprit,) = result.culprits
    (found,) = cards(replace(result, culprits=(replace(culprit, **changes),)))
    return found


def evidence(**changes: Any) -> CheckResult:
    """With changes of the first tensor that speaks against the culprit."""
    first = RESULT.culprits[0].evidence[0]
    tensors = (replace(t, **changes) if t.id == first else t for t in RESULT.tensors)
    return replace(RESULT, tensors=tuple(tensors))


def test_a_card_has_all_facts() -> None:
    found = card()
    assert found.cause.place == "layers.1.feed_forward.w2, backward"
    assert found.behind == "Linear, in FeedForward.forward (model.py:42)"
    assert found.badge.words == "missing all-reduce over tp"
    assert found.strength is Strength.CERTAIN
    assert found.sure.endswith("x its tolerance")
    assert found.ranks_said == "dp1 tp0 (rank 2)"
    assert found.hint.startswith("look for an all-reduce")
    first = RESULT.culprits[0].evidence[0]
    assert found.commands[0].text == f"ttrace export out/candidate {first} wrong.safetensors"
    assert found.step == 0


def test_command_that_made_a_result_is_there_to_be_repeated() -> None:
    made_by = replace(RESULT, command="ttrace diff --reference a --candidate b")
    assert [command.text for command in card(made_by).commands][1:] == [made_by.command]


@pytest.mark.parametrize(
    ("ratio", "strength"),
    [(1.8, Strength.BORDERLINE), (12.0, Strength.STRONG), (8e6, Strength.CERTAIN)],
)
def test_how_sure_is_graded(ratio: float, strength: Strength) -> None:
    result = evidence(ratio=ratio)
    (culprit,) = result.culprits
    result = replace(result, culprits=(replace(culprit, evidence=culprit.evidence[:1]),))
    assert card(result).strength is strength
    assert card(result).sure.startswith(strength.value)


def test_failure_without_a_number_is_of_a_kind_that_rounding_cannot_make() -> None:
    result = evidence(verdict=Verdict.MISSING, ratio=None, judgements=(), statistics=None)
    found = card(result, diagnosis=None)
    assert found.sure == "certain: missing, which rounding cannot make"
    assert found.bar is None
    assert found.commands == ()


def test_bar_is_relative_to_the_reference_and_agrees_with_the_ratio() -> None:
    found = card()
    assert found.bar is not None
    assert found.bar.noise == pytest.approx(found.bar.allowed / 3)
    worst = RESULT[RESULT.culprits[0].evidence[0]].worst
    assert worst is not None
    assert found.bar.error / found.bar.allowed == pytest.approx(worst.ratio)


def test_some_ranks_are_named_by_their_places() -> None:
    assert card(evidence(ranks=(1, 3)), diagnosis=None).ranks_said == "tp1 (ranks 1, 3)"
    assert card(evidence(ranks=(2,)), diagnosis=None).ranks == (2,)


NEAR = Nearest(diagnosis=Diagnosis(mistake=Mistake.TRANSPOSED, dims=(0, 1)), explained=0.9)
TERM = Diagnosis(mistake=Mistake.ONE_TERM_OF_A_SUM, size=2, axes=("tp",))


def test_what_no_pattern_fits_has_the_nearest() -> None:
    found = card(diagnosis=None, nearest=NEAR)
    assert not found.badge.is_known
    assert found.badge.words == "no known pattern fits"
    assert found.badge.nearest == "transposed"
    assert found.looks.startswith("nearest, 90% of the squared error: dims 0 and 1")
    found = card(diagnosis=None, nearest=Nearest(diagnosis=TERM, explained=0.0))
    assert found.badge.nearest == "one term of a sum over tp"
    assert found.looks.startswith("nearest: about 1/2 of the reference")
    assert found.hint.startswith("look for an all-reduce")
    assert card(diagnosis=None).looks == ""


LR = Difference(owner=Owner.PARAMETER, name="lr", reference=(0.1,), candidate=(0.2,), ranks=(1,))


@pytest.mark.parametrize(
    ("changes", "badge"),
    [
        ({"differences": (LR,)}, "lr differs"),
        ({"expected": Expected.DROPOUT}, "dropout of each rank"),
        ({"diagnosis": None, "reason": Reason.OTHER_DATA}, "other data"),
        ({"diagnosis": None, "reason": Reason.COMMON_FACTOR, "factor": 2.0}, "wrong factor (2x)"),
        ({"diagnosis": Diagnosis(mistake="my_own", sentence="mine")}, "my own"),
        (
            {"diagnosis": Diagnosis(mistake=Mistake.SUM_FOR_MEAN, size=2, sizes=("dp", "ranks"))},
            "sum instead of mean over dp",
        ),
        (
            {"diagnosis": Diagnosis(mistake=Mistake.SUM_FOR_MEAN, size=4, sizes=("ranks",))},
            "sum instead of mean over ranks",
        ),
        (
            {"diagnosis": Diagnosis(mistake=Mistake.ROUNDED_LOWER, dtype="bfloat16")},
            "rounded to bfloat16",
        ),
    ],
)
def test_kind_of_mistake_is_a_badge(changes: dict[str, Any], badge: str) -> None:
    assert card(**changes).badge.words == badge
    assert card(**changes).badge.is_known


def test_another_number_is_said_with_its_values_and_ranks() -> None:
    found = card(differences=(LR,))
    assert found.looks == "lr is 0.2, the reference's 0.1, on dp0 tp1 (rank 1)"
    assert found.hint == "check where lr is set"


@pytest.mark.parametrize(
    ("finding", "badge"),
    [
        (Finding.REPLICAS_DISAGREE, "replicas disagree over tp"),
        (Finding.NONFINITE, "NaN or Inf"),
        (Finding.CONSTANT_FACTOR, "wrong factor (1x)"),
        (Finding.NORM, "no known pattern fits"),
    ],
)
def test_without_a_diagnosis_the_finding_says_what_it_is(finding: Finding, badge: str) -> None:
    apart = Specifics(ranks=(1,), other_ranks=(0,), relative_error=0.1)
    found = card(evidence(finding=finding, specifics=apart), diagnosis=None)
    assert found.badge.words == badge


def test_missing_reduction_names_its_axis() -> None:
    apart = Specifics(ranks=(2,), other_ranks=(0,), relative_error=0.1)
    result = evidence(verdict=Verdict.CONFLICT, specifics=apart)
    found = card(
        result,
        diagnosis=None,
        blame=Blame.at(Stage.GRADIENT_REDUCTION, Phase.MAIN_GRADIENT),
        reason=Reason.REPLICAS_DISAGREE,
    )
    assert found.badge.words == "missing reduction over dp"
    assert found.strength is Strength.of(math.inf)


def test_loss_whose_microbatches_weigh_differently_says_so() -> None:
    blame = Blame.at(Stage.LOSS, Phase.FORWARD)
    noted = replace(RESULT, notes=(Note(topic=Topic.UNEQUAL_WEIGHTS),))
    assert card(noted, blame=blame, diagnosis=None).badge.words == "microbatches weighed unequally"
    assert card(blame=blame, diagnosis=None).badge.words == "no known pattern fits"
    assert card(noted, blame=blame).badge.words == "missing all-reduce over tp"


def test_accumulation_is_a_kind_by_its_place() -> None:
    blame = Blame.at(Stage.GRADIENT_ACCUMULATION, Phase.MAIN_GRADIENT)
    assert card(blame=blame, diagnosis=None).badge.words == "microbatches not added up"


def test_other_parameters_are_loaded_whatever_they_look_like() -> None:
    found = card(reason=Reason.OTHER_PARAMETERS)
    assert found.hint == "check the seed, or the checkpoint that is loaded"


def test_worst_elements_are_said_with_both_values() -> None:
    assert card().values[0] == (
        "element (0, 17, 32) is 0, the reference's 0.3, on dp1 tp0 (rank 2)"
    )


def test_number_is_said_rank_by_rank() -> None:
    """A norm that is half of the reference's on all ranks is not called a disagreement."""
    first = RESULT.culprits[0].evidence[0]
    norm = ElementError(index=(), reference=4.0, candidate=2.0, ranks=(0,))
    scalars = tuple(Scalar(ranks=(rank,), value=2.0 + rank / 100) for rank in range(4))
    details = tuple(
        replace(detail, elements=(norm,), scalars=scalars) if detail.id == first else detail
        for detail in RESULT.details
    )
    assert card(replace(RESULT, details=details)).values == (
        "reference: 4",
        "dp0 tp0 (rank 0): 2",
        "dp0 tp1 (rank 1): 2.01",
        "dp1 tp0 (rank 2): 2.02",
        "dp1 tp1 (rank 3): 2.03",
    )


def test_every_rank_is_said_only_where_each_is_wrong() -> None:
    first = RESULT.culprits[0].evidence[0]

    def examined(ratio: float) -> CheckResult:
        details = tuple(
            replace(d, shards=tuple(replace(s, ratio=ratio) for s in d.shards))
            for d in RESULT.details
            if d.id == first
        )
        return replace(evidence(ranks=()), details=details)

    assert card(examined(10.0)).ranks_said == "every rank"
    assert card(examined(10.0)).ranks == (0, 1, 2, 3)
    assert card(examined(0.5)).ranks_said == ""


def test_one_process_has_no_ranks_to_tell_apart() -> None:
    alone = replace(RESULT, runs=RESULT.runs[:1])
    assert card(alone).ranks_said == ""
    assert card(alone).values[0].endswith("the reference's 0.3")


def test_bar_of_replicas_that_disagree_is_of_the_one_that_is_furthest_off() -> None:
    """The first one is right: its own error says nothing."""
    result = evidence(verdict=Verdict.CONFLICT, ratio=0.0)
    found = card(result).bar
    assert found is not None
    assert found.error == 0.4
    assert found.error / found.allowed == pytest.approx(2e5)


def test_what_all_ranks_hold_is_on_every_rank() -> None:
    assert listed_ranks((0, 1, 2, 3), mesh_of(RESULT)) == "every rank"
    assert listed_ranks((0, 1, 2), mesh_of(RESULT)) == "dp0 tp0, dp0 tp1, dp1 tp0 (ranks 0, 1, 2)"
    assert listed_ranks((0, 1), NO_MESH) == "ranks 0, 1"
