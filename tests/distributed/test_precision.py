"""Values of fewer bits than the reference's are named with their dtype; correct runs are silent.

In training with autocast nothing but the bits tells: every plant is nearer to the reference than
noise, but for those that are marked so.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, Protocol

import pytest
import torch
from torch.distributed.fsdp import MixedPrecisionPolicy

from tests.support.precisions import Training, train
from tests.support.tracing import explain
from ttrace.core.blame import Blame, Mistake, Phase, Stage
from ttrace.core.finding import Finding, Topic
from ttrace.core.ids import Kind
from ttrace.core.results import CheckResult, Outcome
from ttrace.lab.experiment import Experiment
from ttrace.lab.functions import WorkerPool
from ttrace.lab.launch import LocalExecutor
from ttrace.lab.run import Function
from ttrace.report.wording import why

BF16 = torch.bfloat16
FP32, AUTO, LOW = Training(), Training(precision="autocast"), Training(precision="bfloat16")
REDUCTION = Blame.at(Stage.GRADIENT_REDUCTION, Phase.MAIN_GRADIENT)
STATE = Blame.at(Stage.OPTIMIZER_STEP, Phase.STATE)
UPDATE = Blame.at(Stage.OPTIMIZER_STEP, Phase.UPDATE)
NORM = Blame.of("norm", phase=Phase.FORWARD)
QUANTISER = Blame.of("blocks.1.quantise", phase=Phase.FORWARD)
PRECISION = (Finding.LOWER_PRECISION, Finding.COARSER_THAN_TERMS, Finding.NOT_QUANTISED)
POLICY = Training(layout="fsdp2", policy=MixedPrecisionPolicy(BF16, torch.float32))


class Compare(Protocol):
    def __call__(
        self, reference: Training, candidate: Training, *, isolate: bool = True
    ) -> CheckResult: ...


@pytest.fixture
def compare(pool: WorkerPool, tmp_path: Path) -> Compare:
    def compare(reference: Training, candidate: Training, *, isolate: bool = True) -> CheckResult:
        experiment = Experiment(
            reference=Function(train, 1, (reference,)),
            candidate=Function(train, 2, (candidate,)),
            folder=Path(tempfile.mkdtemp(dir=tmp_path)),
            steps=candidate.steps,
            execute=LocalExecutor(pool),
        )
        return experiment.diff() if isolate else experiment.compare()

    return compare


class Wrong(NamedTuple):
    plant: str
    reference: Training
    layout: str
    blame: Blame
    dtype: str
    is_near: bool = True  # nearer than noise, so that nothing but the bits tells


WRONG = {
    "fp32-ddp-bf16-hook": Wrong("bfloat16 hook", FP32, "ddp", REDUCTION, "bfloat16", False),
    "fp32-ddp-fp16-hook": Wrong("float16 hook", FP32, "ddp", REDUCTION, "float16", False),
    "autocast-ddp-bf16-hook": Wrong("bfloat16 hook", AUTO, "ddp", REDUCTION, "bfloat16"),
    "autocast-ddp-fp16-hook": Wrong("float16 hook", AUTO, "ddp", REDUCTION, "float16"),
    "autocast-reduced-by-hand": Wrong("reduction", AUTO, "by hand", REDUCTION, "bfloat16"),
    "policy-forgotten": Wrong("policy forgotten", POLICY, "fsdp2", REDUCTION, "bfloat16"),
    "autocast-accumulation": Wrong(
        "accumulation", replace(AUTO, accumulate=2), "tp", REDUCTION, "bfloat16"
    ),
    "fp32-mlp": Wrong(
        "mlp", FP32, "tp", Blame.of("blocks.0.mlp", phase=Phase.FORWARD), "bfloat16", False
    ),
    "fp32-norm": Wrong("norm", FP32, "ddp", NORM, "bfloat16", False),
    "autocast-norm": Wrong("norm", AUTO, "ddp", NORM, "bfloat16"),
    "autocast-norm-tp-sp": Wrong("norm", AUTO, "tp sp", NORM, "bfloat16"),
    "autocast-loss": Wrong(
        "loss", AUTO, "ddp", Blame.at(Stage.LOSS, Phase.FORWARD), "bfloat16", False
    ),
    "autocast-state": Wrong("state", AUTO, "ddp", STATE, "bfloat16"),
    "autocast-open-state": Wrong("open state", AUTO, "fsdp2", STATE, "bfloat16"),
    "autocast-update": Wrong("update", AUTO, "ddp", UPDATE, "bfloat16", False),
    "no-master-weights": Wrong("update of bfloat16", AUTO, "tp", UPDATE, "bfloat16", False),
    "fp32-no-quantiser": Wrong(
        "no quantiser", replace(FP32, quantises=True), "ddp", QUANTISER, "float32"
    ),
    "autocast-no-quantiser": Wrong(
        "no quantiser", replace(AUTO, quantises=True), "ddp", QUANTISER, "float32"
    ),
    "bf16-no-quantiser": Wrong(
        "no quantiser", replace(LOW, quantises=True), "ddp", QUANTISER, "bfloat16"
    ),
}


def cases(named: Mapping[str, object]) -> list[object]:
    return [pytest.param(each, id=name) for name, each in named.items()]


def ratios(result: CheckResult) -> list[float]:
    """Of all other statistics, of the tensors that were named."""
    return [
        max(one.ratio for one in tensor.judgements[:-1])
        for tensor in result.tensors
        if tensor.finding in PRECISION
    ]


@pytest.mark.parametrize("wrong", cases(WRONG))
def test_what_lost_precision_is_named_and_its_twin_is_silent(
    wrong: Wrong, compare: Compare
) -> None:
    planted = replace(wrong.reference, layout=wrong.layout, plant=wrong.plant)
    result = compare(wrong.reference, planted)
    assert [culprit.blame for culprit in result.culprits] == [wrong.blame], explain(result)
    (culprit,) = result.culprits
    assert culprit.diagnosis is not None
    is_quantised = wrong.plant == "no quantiser"
    mistake = Mistake.NOT_QUANTISED if is_quantised else Mistake.ROUNDED_LOWER
    assert (culprit.diagnosis.mistake, culprit.diagnosis.dtype) == (mistake, wrong.dtype)
    expected = "float8_e4m3fn" if is_quantised else "float32"
    assert culprit.diagnosis.reference_dtype == expected
    plain = replace(result, isolation=None)
    assert (max(ratios(plain)) < 1) == wrong.is_near, ratios(plain)
    twin = replace(wrong.reference, layout=wrong.layout)
    assert compare(wrong.reference, twin).outcome is Outcome.EQUIVALENT


def accumulating(how: Training, count: int, optimizer: str = "momentum") -> Training:
    return replace(how, accumulate=count, optimizer=optimizer)


RIGHT = {
    f"{how.precision}-{layout}".replace(" ", "-"): (how, replace(how, layout=layout))
    for how in (FP32, LOW, AUTO)
    for layout in ("ddp", "fsdp2", "tp", "tp sp")
}
for each in (FP32, LOW, AUTO):
    name = each.precision
    RIGHT |= {
        f"{name}-one-term-for-four": (
            accumulating(each, 4),
            accumulating(replace(each, layout="tp"), 1),
        ),
        f"{name}-one-term-for-two": (
            accumulating(each, 2),
            accumulating(replace(each, layout="ddp"), 1),
        ),
        f"{name}-two-terms-for-one": (each, replace(each, layout="ddp", accumulate=2)),
        f"{name}-sgd": (
            accumulating(each, 4, "sgd"),
            accumulating(replace(each, layout="fsdp2"), 2, "sgd"),
        ),
        f"{name}-frozen": (
            replace(each, frozen=True, steps=2),
            replace(each, frozen=True, layout="ddp", steps=2),
        ),
        f"{name}-quantised": (
            replace(each, quantises=True),
            replace(each, quantises=True, layout="tp"),
        ),
    }
UNSAID = Training(layout="fsdp2", policy=MixedPrecisionPolicy(BF16))
REDUCING = Training(layout="fsdp2", policy=MixedPrecisionPolicy(reduce_dtype=BF16))
COMPRESSED = Training(layout="ddp", plant="bfloat16 hook")
RIGHT |= {
    "policy": (POLICY, POLICY),
    "policy-reduces-in-bf16": (UNSAID, UNSAID),
    "fp32-reduced-in-bf16": (REDUCING, REDUCING),
    "fp32-compressed": (COMPRESSED, COMPRESSED),
    "state-of-local-tensors": (
        replace(FP32, optimizer="local", steps=2),
        replace(FP32, optimizer="local", layout="fsdp2", steps=2),
    ),
    "state-of-local-tensors-tp": (
        replace(FP32, optimizer="local"),
        replace(FP32, optimizer="local", layout="tp"),
    ),
    "reference-in-autocast": (AUTO, replace(FP32, layout="ddp")),
}


@pytest.mark.parametrize(
    "pair",
    cases(RIGHT),
)
def test_a_correct_run_is_not_accused(pair: tuple[Training, Training], compare: Compare) -> None:
    result = compare(*pair, isolate=False)
    assert result.outcome is Outcome.EQUIVALENT, explain(result)
    assert not any(tensor.finding in PRECISION for tensor in result.tensors)


@pytest.mark.parametrize("how", [REDUCING, COMPRESSED], ids=["fsdp2", "hook"])
def test_terms_that_both_runs_send_in_fewer_bits_are_silent_isolated_too(
    how: Training, compare: Compare
) -> None:
    result = compare(how, how)
    assert result.outcome is Outcome.EQUIVALENT, explain(result)


def test_a_rank_that_counts_for_more_is_found_although_terms_have_few_bits(
    compare: Compare,
) -> None:
    result = compare(COMPRESSED, replace(COMPRESSED, plant="heavier bfloat16 hook"))
    assert [culprit.blame.phase for culprit in result.culprits] == [Phase.MAIN_GRADIENT]


def test_a_reduction_that_was_asked_for_is_told_and_passes(compare: Compare) -> None:
    reducing = replace(AUTO, layout="fsdp2", policy=MixedPrecisionPolicy(reduce_dtype=BF16))
    result = compare(AUTO, reducing)
    assert result.outcome is Outcome.EQUIVALENT, explain(result)
    (note,) = [note for note in result.notes if note.topic is Topic.LOWER_PRECISION]
    assert (str(note.first), note.count) == ("step0/embed:main_grad.weight", 7)
    assert note.text == "bfloat16, float32 in the reference"


def test_another_policy_than_the_references_is_named(compare: Compare) -> None:
    other = replace(POLICY, policy=MixedPrecisionPolicy(BF16, BF16))
    result = compare(POLICY, other, isolate=False)
    assert [culprit.blame for culprit in result.culprits] == [REDUCTION], explain(result)
    assert {t.finding for t in result.failures} == {Finding.COARSER_THAN_TERMS}


@pytest.mark.parametrize("reference", [FP32, LOW], ids=["float32", "bfloat16"])
def test_a_rank_that_skips_the_only_step_is_named(reference: Training, compare: Compare) -> None:
    """Its parameters are the replicas of those that were updated, and nothing follows."""
    result = compare(reference, replace(reference, layout="ddp", plant="one rank skips"))
    assert [culprit.blame for culprit in result.culprits] == [UPDATE], explain(result)
    failures = [t for t in result.failures if t.finding is Finding.UPDATED_BY_SOME]
    assert len(failures) == sum(t.id.kind is Kind.PARAM_AFTER for t in result.tensors)
    assert {t.ranks for t in failures} == {(1,)}
    assert "updated on rank 0, and not on rank 1" in why(failures[0])
