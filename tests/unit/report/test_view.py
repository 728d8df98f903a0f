"""Culprits that share a cause are one line, with the list behind it."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from tests.support.made_results import made, tensor
from tests.support.printing import printed
from ttrace.core.blame import Blame, Culprit, Phase, Reason, Stage
from ttrace.core.ids import TensorId
from ttrace.core.record import ModuleInfo
from ttrace.core.results import CheckResult, Coverage, Verdict
from ttrace.report import markdown, overall, view, wording
from ttrace.report.html import payload


def blamed(classes: dict[str, str], ranks: tuple[int, ...] = (2, 3)) -> CheckResult:
    ids = [TensorId.parse(f"step0/{path}:output.0") for path in classes]
    tensors = tuple(replace(tensor(id_, n, 9e3), ranks=ranks) for n, id_ in enumerate(ids))
    return replace(
        made(2, wrong_layer=1),
        tensors=tensors,
        modules=tuple(ModuleInfo(path=p, class_name=c, source="") for p, c in classes.items()),
        culprits=tuple(
            Culprit(
                blame=Blame.of(id_.module, phase=Phase.FORWARD),
                reason=Reason.GIVEN_REFERENCE_VALUES,
                evidence=(id_,),
            )
            for id_ in ids
        ),
    )


EXPERTS = {f"layers.{n}.mlp.experts.{m}": "Expert" for n in range(4) for m in range(8)}


def test_experts_of_all_layers_are_one_line() -> None:
    result = blamed(EXPERTS | {"norm": "RMSNorm"})
    experts, norm = view.grouped(result)
    assert experts.where.startswith("layers.*.mlp.experts.* (32 places: layers.0.mlp.experts.0, ")
    assert experts.reason.endswith(", on dp1 (ranks 2, 3)")
    assert experts.places == tuple(EXPERTS)
    assert (norm.where, norm.places) == ("norm", ())
    assert len(result.culprits) == len(view.root_causes(result)) == 33


def test_every_form_for_people_groups_them() -> None:
    result = blamed(EXPERTS)
    for text in (printed(result), markdown.render(result), str(payload(result))):
        assert "layers.*.mlp.experts.* (32 places: " in text
        assert "given the reference's values" in text


def test_modules_of_another_class_are_another_cause() -> None:
    result = blamed({"0": "Linear", "1": "ReLU", "2": "Linear"})
    assert [cause.where for cause in view.grouped(result)] == ["* (2 places: 0, 2)", "1"]


def test_names_with_digits_in_them_are_names() -> None:
    result = blamed({"conv1": "Conv2d", "conv2": "Conv2d"})
    assert [cause.where for cause in view.grouped(result)] == ["conv1", "conv2"]


def test_where_some_are_wrong_on_all_ranks_none_is_named() -> None:
    result = blamed({"layers.0": "Block", "layers.1": "Block"}, ranks=())
    (cause,) = view.grouped(result)
    assert "on rank" not in cause.reason


@pytest.mark.parametrize(
    ("stage", "phase", "place"),
    [
        (Stage.MODEL_INPUT, Phase.INPUTS, "model input"),
        (Stage.INITIAL_PARAMETERS, Phase.PARAMETERS, "initial parameters"),
        (Stage.BACKWARD, Phase.BACKWARD, "backward"),
        (Stage.LOSS, Phase.FORWARD, "loss, forward"),
        (Stage.OPTIMIZER_STEP, Phase.STATE, "optimizer step, state"),
    ],
)
def test_a_stage_that_says_its_phase_stands_alone(stage: Stage, phase: Phase, place: str) -> None:
    result = blamed({"0": "Linear"})
    culprit = replace(result.culprits[0], blame=Blame.at(stage, phase))
    result = replace(result, culprits=(culprit,))
    (cause,) = view.grouped(result)
    assert wording.place(culprit) == cause.place == place
    assert overall.headline(result) == f"NOT EQUIVALENT: {place}"
    first, _, rest = place.partition(", ")
    assert f"- where: **`{first}`**{f', {rest}' if rest else ''}" in markdown.render(result)


def test_one_tensor_of_one_module_is_one() -> None:
    result = blamed({"0": "Linear"})
    result = replace(result, isolation=result)
    assert overall.follow_on(result) == (
        "1 tensor of 1 module differs; the isolated run found 1 root cause"
    )
    more = replace(result, tensors=blamed({"0": "Linear", "1": "Linear"}).tensors)
    assert overall.follow_on(more) == (
        "2 tensors of 2 modules differ; the isolated run found 1 root cause, the rest are "
        "follow-on errors"
    )


def test_an_infinite_ratio_is_said_in_words() -> None:
    found = tensor(TensorId.parse("step0/0:output.0"), 0, math.inf)
    judged = tuple(replace(each, allowed=0.0) for each in found.judgements)
    found = replace(found, judgements=judged)
    assert wording.evidence_sentence(found) == (
        "the norm of the error is far beyond what is allowed (inf > 0)"
    )
    assert wording.why(found) == "far beyond its tolerance"
    whole = replace(found, dtype="int64")
    assert wording.evidence_sentence(whole) == wording.why(whole)
    assert wording.why(whole) == "it must be equal, and 12 of 16384 elements are not"


@pytest.mark.parametrize(
    ("coverage", "said"),
    [
        (
            Coverage(hooks_expected=408, hooks_fired=408),
            "everything was captured: every module was called, and all 408 gradient hooks fired",
        ),
        (
            Coverage(hooks_expected=1, hooks_fired=1, never_called=("a",)),
            "all 1 gradient hook fired",
        ),
        (
            Coverage(),
            "everything was captured: every module was called, and no gradient was expected",
        ),
        (
            Coverage(hooks_expected=8, hooks_fired=7, unfired=("a",)),
            "gradient hooks: 7 of 8 fired",
        ),
    ],
)
def test_only_what_is_missing_is_called_so(coverage: Coverage, said: str) -> None:
    assert overall.captured(replace(made(1), coverage=coverage)) == said


@pytest.mark.parametrize(
    ("verdict", "ratio", "said"),
    [
        (Verdict.MISMATCH, 193_000.0, "193,000x"),
        (Verdict.PASS, 0.2, "0.2x"),
        (Verdict.MISSING, None, "-"),
        (Verdict.CONFLICT, 0.0, "-"),
        (Verdict.CONFLICT, 12.0, "12x"),
    ],
)
def test_ratio_stands_in_a_table_where_it_is_what_fails(
    verdict: Verdict, ratio: float | None, said: str
) -> None:
    """Of replicas that disagree the one that was judged may be right."""
    first = made(2).tensors[0]
    assert view.ratio_cell(replace(first, verdict=verdict, ratio=ratio)) == said
