"""Sentences of older result files become the types they were made from, or are kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.made_results import made
from ttrace.core.blame import Blame, Culprit, Diagnosis, Mistake, Phase, Reason, Stage
from ttrace.core.finding import Finding, Note, Specifics, Topic
from ttrace.core.results import CheckResult
from ttrace.report import view, wording
from ttrace.report.json_file import read_result, render

FAILING = made(2, wrong_layer=1)
EVIDENCE = str(FAILING.failures[0].id)


def old(folder: Path, **changes: Any) -> CheckResult:
    """A file of schema 4, made from a present one."""
    data = json.loads(render(FAILING))
    for tensor in data["tensors"]:
        tensor["note"] = ""
    plain: dict[str, list[Any]] = {"culprits": [], "notes": [], "details": []}
    file = folder / "result.json"
    file.write_text(json.dumps(data | plain | {"schema": 4} | changes))
    return read_result(file)


def culprit(folder: Path, where: str, part: str, reason: str) -> Culprit:
    entry = {"where": where, "part": part, "reason": reason, "evidence": [EVIDENCE]}
    (found,) = old(folder, culprits=[entry]).culprits
    return found


@pytest.mark.parametrize(
    ("where", "part", "blame"),
    [
        ("a.b", "forward", Blame.of("a.b", phase=Phase.FORWARD)),
        ("(model)", "backward", Blame.of("", phase=Phase.BACKWARD)),
        ("a or b.c", "backward", Blame.of("a", "b.c", phase=Phase.BACKWARD)),
        ("a.weight, b.c.bias", "parameters", Blame.of("a", "b.c", phase=Phase.PARAMETERS)),
        ("loss", "forward", Blame.at(Stage.LOSS, Phase.FORWARD)),
        (
            "gradient clipping",
            "grad norm",
            Blame.at(Stage.GRADIENT_CLIPPING, Phase.GRADIENT_NORM),
        ),
        ("optimizer step", "state", Blame.at(Stage.OPTIMIZER_STEP, Phase.STATE)),
    ],
)
def test_a_place_becomes_blame(where: str, part: str, blame: Blame, tmp_path: Path) -> None:
    assert culprit(tmp_path, where, part, "why").blame == blame


REASONS = {
    "its output is the first wrong tensor: 7 times its tolerance": Reason.FIRST_WRONG_OUTPUT,
    "its local gradient passes, reduced, weight does not: conflict": Reason.REDUCED_GRADIENT,
    "its local gradient passes, reduced over data-parallel ranks, weight does not: missing": (
        Reason.DATA_PARALLEL_GRADIENT
    ),
    "activations and their gradients pass, weight does not: missing": Reason.LOCAL_GRADIENT,
    "given the reference's values, output of a is wrong: missing": Reason.GIVEN_REFERENCE_VALUES,
}


@pytest.mark.parametrize("told", REASONS)
def test_a_known_reason_becomes_its_enum(told: str, tmp_path: Path) -> None:
    found = culprit(tmp_path, "a", "forward", told)
    assert (found.reason, found.told) == (REASONS[told], "")


def test_numbers_of_a_reason_are_read(tmp_path: Path) -> None:
    told = "all main gradients are 2 times the reference's (33 of 34) while activation gradients"
    found = culprit(tmp_path, "gradient reduction", "main gradient", told)
    assert (found.factor, found.count, found.total) == (2.0, 33, 34)


def test_steps_of_a_reason_are_read(tmp_path: Path) -> None:
    told = "given the reference's values, output of a is wrong: missing (step 1, 2)"
    assert culprit(tmp_path, "a", "forward", told).steps == (1, 2)


def test_an_unknown_reason_is_told_as_it_was(tmp_path: Path) -> None:
    entry = {"where": "a", "part": "forward", "reason": "the moon", "evidence": [EVIDENCE]}
    result = old(tmp_path, culprits=[entry])
    assert result.culprits[0].reason is Reason.TOLD
    assert [cause.reason for cause in view.root_causes(result)] == ["the moon"]


DIAGNOSES = {
    "it is all zero: never computed, or never received": Diagnosis(mistake=Mistake.ALL_ZERO),
    "dims 0 and 2 are exchanged: it is transposed": Diagnosis(
        mistake=Mistake.TRANSPOSED, dims=(0, 2)
    ),
    "2 times the reference, and 2 is the size of dp or the number of microbatches: a sum where a "
    "mean is due": Diagnosis(mistake=Mistake.SUM_FOR_MEAN, size=2, sizes=("dp", "microbatches")),
    "every value is one of bfloat16, the reference's are not: it was rounded to that": Diagnosis(
        mistake=Mistake.ROUNDED_LOWER, dtype="bfloat16"
    ),
    "it fell off the table": Diagnosis(mistake="told", sentence="it fell off the table"),
}


REWORDED = {
    "every value is one of bfloat16, the reference's are not: it was rounded to that": (
        "every value is one of bfloat16, and should not be: it was rounded to that"
    )
}


@pytest.mark.parametrize("told", DIAGNOSES)
def test_a_diagnosis_is_read_and_said_again(told: str, tmp_path: Path) -> None:
    (detail, *_) = json.loads(render(FAILING))["details"]
    (read,) = old(tmp_path, details=[detail | {"diagnosis": told}]).details
    assert read.diagnosis == DIAGNOSES[told]
    assert wording.diagnosis(DIAGNOSES[told]) == REWORDED.get(told, told)


FINDINGS: dict[str, tuple[Finding, Specifics | None]] = {
    "equal": (Finding.EQUAL, None),
    "equal; 2 tokens routed elsewhere": (Finding.EQUAL, Specifics(moved=2)),
    "a constant factor of 2": (Finding.CONSTANT_FACTOR, None),
    "a factor of 1.0098": (Finding.FACTOR, None),
    "on average 0.50057994 of the reference": (Finding.AVERAGE_FACTOR, None),
    "row (3, 17) of dims 0, 1": (Finding.PLACE, None),
    "element (1, 3, 9)": (Finding.PLACE, None),
    "3 tokens routed elsewhere, noise explains 0.5": (
        Finding.TOKENS_MOVED,
        Specifics(moved=3, allowed_moves=0.5),
    ),
    "replicas on ranks 2, 3 and rank 0 disagree by 1.4 relative": (
        Finding.REPLICAS_DISAGREE,
        Specifics(ranks=(2, 3), other_ranks=(0,), relative_error=1.4),
    ),
    "no rank holds [2:4] of [4]": (
        Finding.TOLD,
        Specifics(told="no rank holds [2:4] of [4]"),
    ),
}


@pytest.mark.parametrize("told", FINDINGS)
def test_a_note_on_a_tensor_becomes_a_finding(told: str, tmp_path: Path) -> None:
    tensor = json.loads(render(FAILING))["tensors"][0] | {"note": told}
    (read,) = old(tmp_path, tensors=[tensor]).tensors
    assert (read.finding, read.specifics) == FINDINGS[told]


NOTES = {
    "layout inferred from the shape: 18 tensors, first step0/a:input.0; nothing else says how "
    "ranks share them (ttrace.annotate does)": Note(
        topic=Topic.INFERRED_LAYOUTS,
        count=18,
        first=FAILING.tensors[0].id.parse("step0/a:input.0"),
    ),
    "activation gradients are 2 times the reference's, as a loss averaged over a part of the batch "
    "makes them; they are compared after dividing by it": Note(topic=Topic.LOSS_SCALE, factor=2.0),
    "the loss weighs microbatches differently from the reference: its gradient is 1, 0.5 times the "
    "reference's; a mean of means over unequal counts is a different loss": Note(
        topic=Topic.UNEQUAL_WEIGHTS, gains=(1.0, 0.5)
    ),
    "the reference is deterministic: 12 tensors are bitwise equal again": Note(
        topic=Topic.DETERMINISTIC, total=12
    ),
    "the last journal line was torn": Note(topic=Topic.RUN, text="the last journal line was torn"),
}


@pytest.mark.parametrize("told", NOTES)
def test_a_note_gets_its_topic(told: str, tmp_path: Path) -> None:
    assert old(tmp_path, notes=[told]).notes == (NOTES[told],)
