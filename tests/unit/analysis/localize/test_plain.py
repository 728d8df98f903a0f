"""Who is blamed for which first wrong tensor; results are made by hand, in execution order."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.support.plain_results import EQUAL, ROUNDED, STEP, all_of, blame, gained, id_of
from ttrace.analysis.localize import localize
from ttrace.core.blame import Blame, Culprit, Phase, Reason, Stage
from ttrace.core.finding import Finding, Specifics
from ttrace.core.results import TensorResult, Verdict
from ttrace.report import wording


@pytest.mark.parametrize(
    ("wrong", "blamed"),
    [
        # what ran wrong first, forward
        ("a:output.0", Blame.of("a", phase=Phase.FORWARD)),
        (
            "b.c:output.0 b.d:input.0 b.d:output.0 b:output.0 :loss",
            Blame.of("b.c", phase=Phase.FORWARD),
        ),
        ("b:output.0 :output.0 :loss", Blame.of("b", phase=Phase.FORWARD)),
        (":output.0", Blame.of("", phase=Phase.FORWARD)),
        ("b.d:input.0 b.d:output.0", Blame.of("b", phase=Phase.FORWARD)),
        ("e:input.0", Blame.of("", phase=Phase.FORWARD)),
        (":loss", Blame.at(Stage.LOSS, Phase.FORWARD)),
        # backward
        ("b.d:grad_input.0 b.c:grad_output.0", Blame.of("b.d", phase=Phase.BACKWARD)),
        ("b.c:grad_output.0 b.c:grad_input.0", Blame.of("b", phase=Phase.BACKWARD)),
        ("a:grad_output.0", Blame.of("", phase=Phase.BACKWARD)),
        (":grad_output.0 e:grad_output.0", Blame.at(Stage.LOSS, Phase.BACKWARD)),
        # before the step
        ("a:param.weight a:output.0", Blame.of("a", phase=Phase.PARAMETERS)),
        ("a:param.weight b.c:param.weight", Blame.of("a", "b.c", phase=Phase.PARAMETERS)),
        (all_of("param"), Blame.at(Stage.INITIAL_PARAMETERS, Phase.PARAMETERS)),
        (":input.0 a:input.0 a:output.0", Blame.at(Stage.MODEL_INPUT, Phase.INPUTS)),
        # after the backward
        ("b.c:grad.weight", Blame.of("b.c", phase=Phase.WEIGHT_GRADIENT)),
        (all_of("grad"), Blame.at(Stage.BACKWARD, Phase.WEIGHT_GRADIENT)),
        ("b.c:main_grad.weight", Blame.of("b.c", phase=Phase.GRADIENT_REDUCTION)),
        (all_of("main_grad"), Blame.at(Stage.GRADIENT_ACCUMULATION, Phase.MAIN_GRADIENT)),
        (":grad_norm", Blame.at(Stage.GRADIENT_CLIPPING, Phase.GRADIENT_NORM)),
        ("e:clipped_grad.weight", Blame.at(Stage.GRADIENT_CLIPPING, Phase.CLIP)),
        (all_of("clipped_grad"), Blame.at(Stage.GRADIENT_CLIPPING, Phase.CLIP)),
        ("a:optimizer.weight.exp_avg", Blame.at(Stage.OPTIMIZER_STEP, Phase.STATE)),
        (all_of("optimizer"), Blame.at(Stage.OPTIMIZER_STEP, Phase.STATE)),
        ("e:param_after.weight", Blame.of("e", phase=Phase.UPDATE)),
        (all_of("param_after"), Blame.at(Stage.OPTIMIZER_STEP, Phase.UPDATE)),
        ("b.d:buffer.mean", Blame.of("b.d", phase=Phase.BUFFER)),
        # an earlier stage explains a later one
        ("a:param.weight :input.0", Blame.of("a", phase=Phase.PARAMETERS)),
        ("e:output.0 a:grad_input.0", Blame.of("e", phase=Phase.FORWARD)),
        (f"a:grad_input.0 {all_of('main_grad')}", Blame.of("a", phase=Phase.BACKWARD)),
        (
            "b.c:grad.weight b.c:main_grad.weight :grad_norm",
            Blame.of("b.c", phase=Phase.WEIGHT_GRADIENT),
        ),
        (
            "a:accumulated_grad.weight a:main_grad.weight",
            Blame.of("a", phase=Phase.GRADIENT_ACCUMULATION),
        ),
        (
            f"{all_of('accumulated_grad')} {all_of('main_grad')}",
            Blame.at(Stage.GRADIENT_ACCUMULATION, Phase.MAIN_GRADIENT),
        ),
        (f"a:grad_input.0 {all_of('grad')}", Blame.of("a", phase=Phase.BACKWARD)),
        (
            f"b.c:main_grad.weight {all_of('param_after')}",
            Blame.of("b.c", phase=Phase.GRADIENT_REDUCTION),
        ),
        (
            f"{all_of('main_grad')} :grad_norm",
            Blame.at(Stage.GRADIENT_ACCUMULATION, Phase.MAIN_GRADIENT),
        ),
        (
            f":grad_norm {all_of('clipped_grad')}",
            Blame.at(Stage.GRADIENT_CLIPPING, Phase.GRADIENT_NORM),
        ),
        (
            f"{all_of('clipped_grad')} {all_of('optimizer')}",
            Blame.at(Stage.GRADIENT_CLIPPING, Phase.CLIP),
        ),
        (
            f"{all_of('optimizer')} {all_of('param_after')}",
            Blame.at(Stage.OPTIMIZER_STEP, Phase.STATE),
        ),
        ("e:param_after.weight b.d:buffer.mean", Blame.of("e", phase=Phase.UPDATE)),
    ],
)
def test_the_first_wrong_tensor_names_the_culprit(wrong: str, blamed: Blame) -> None:
    (culprit,) = blame(wrong)
    assert culprit.blame == blamed
    assert set(map(str, culprit.evidence)) <= {f"step0/{name}" for name in wrong.split()}
    assert culprit.evidence


def test_nothing_wrong_blames_nobody() -> None:
    assert blame("") == ()


@pytest.mark.parametrize("verdict", list(Verdict))
def test_only_failures_are_blamed(verdict: Verdict) -> None:
    culprits = blame({"a:output.0": verdict})
    assert [culprit.blame.modules for culprit in culprits] == [("a",)] * verdict.is_failure


def test_later_steps_are_consequences() -> None:
    results = [
        TensorResult(id=id_of(name, step), verdict=Verdict.MISMATCH, order=order)
        for order, (name, step) in enumerate([("a:output.0", 1), ("b.c:output.0", 0)])
    ]
    assert [culprit.blame.modules for culprit in localize(results, {})] == [("b.c",)]
    assert [culprit.blame.modules for culprit in localize(results[:1], {})] == [("a",)]


class TestConsumers:
    """A wrong gradient of an output comes from those who used it."""

    @pytest.mark.parametrize(
        ("users", "modules"),
        [
            (("e:grad_input.0",), ("e",)),
            (("b.d:grad_input.0", "e:grad_input.0"), ("b.d", "e")),
            (("b:grad_input.0", "b.c:grad_input.0", "e:grad_input.1"), ("b", "e")),
            (("b:grad_output.0",), ("",)),
        ],
    )
    def test_are_blamed(self, users: tuple[str, ...], modules: tuple[str, ...]) -> None:
        (culprit,) = blame("a:grad_output.0", consumers={"a:grad_output.0": users})
        assert culprit.blame == Blame.of(*modules, phase=Phase.BACKWARD)
        assert culprit.reason is Reason.GRADIENT_PASSED_BACK

    def test_of_the_models_output_are_blamed_before_the_loss(self) -> None:
        users = {":grad_output.0": ("e:grad_input.0",)}
        assert [c.blame.modules for c in blame(":grad_output.0", consumers=users)] == [("e",)]


class TestMainGradients:
    names = all_of("main_grad").split()

    def factors(self, *gains: float) -> tuple[Culprit, ...]:
        return blame(
            all_of("main_grad"),
            statistics=dict(zip(self.names, map(gained, gains), strict=True)),
            findings=dict.fromkeys(self.names, Finding.CONSTANT_FACTOR),
        )

    def test_with_a_common_factor_accuse_the_reduction(self) -> None:
        (culprit,) = self.factors(2.0, 2.001, 1.999, 2.0)
        assert culprit.blame.stage is Stage.GRADIENT_REDUCTION
        assert culprit.reason is Reason.COMMON_FACTOR
        assert (culprit.factor, culprit.count, culprit.total) == (2.0, 4, 4)

    def test_with_different_factors_accuse_the_accumulation(self) -> None:
        (culprit,) = self.factors(2.0, 2.0, 3.0, 2.0)
        assert culprit.blame.stage is Stage.GRADIENT_ACCUMULATION
        assert culprit.reason is Reason.NO_COMMON_FACTOR

    def test_whose_replicas_disagree_accuse_the_reduction(self) -> None:
        (culprit,) = blame(dict.fromkeys(self.names, Verdict.CONFLICT))
        assert culprit.blame.stage is Stage.GRADIENT_REDUCTION
        assert culprit.reason is Reason.REPLICAS_DISAGREE

    def test_of_some_modules_accuse_each(self) -> None:
        culprits = blame("a:main_grad.weight e:main_grad.weight")
        assert {c.blame.modules for c in culprits} == {("a",), ("e",)}

    def test_without_a_local_one_accuse_the_module(self) -> None:
        """Traces of gradients that no hook saw."""
        result = TensorResult(
            id=id_of("b.c:main_grad.weight"), verdict=Verdict.MISMATCH, order=0, ratio=7.0
        )
        right = [
            replace(result, id=id_of(f"{m}:main_grad.weight"), verdict=Verdict.PASS) for m in "aef"
        ]
        (culprit,) = localize([result, *right], {})
        assert culprit.blame == Blame.of("b.c", phase=Phase.MAIN_GRADIENT)


class TestLocalGradients:
    def test_whose_replicas_disagree_were_not_reduced(self) -> None:
        (culprit,) = blame({"b.c:grad.weight": Verdict.CONFLICT})
        assert culprit.blame == Blame.of("b.c", phase=Phase.GRADIENT_REDUCTION)

    def test_of_some_modules_accuse_each(self) -> None:
        wrong = {"a:grad.weight": Verdict.MISMATCH, "e:grad.weight": Verdict.CONFLICT}
        assert {culprit.blame for culprit in blame(wrong)} == {
            Blame.of("a", phase=Phase.WEIGHT_GRADIENT),
            Blame.of("e", phase=Phase.GRADIENT_REDUCTION),
        }

    def test_that_are_missing_accuse_the_module(self) -> None:
        (culprit,) = blame({"e:grad.weight": Verdict.MISSING})
        assert culprit.blame == Blame.of("e", phase=Phase.WEIGHT_GRADIENT)


class TestClipping:
    names = (":grad_norm", *all_of("clipped_grad").split())

    def test_by_the_candidate_alone_explains_a_wrong_update(self) -> None:
        extra = dict.fromkeys(self.names, Verdict.EXTRA)
        later = dict.fromkeys(all_of("param_after").split(), Verdict.MISMATCH)
        (culprit,) = blame(extra | later)
        assert culprit.blame == Blame.at(Stage.GRADIENT_CLIPPING, Phase.CLIP)
        assert culprit.reason is Reason.CLIPS_ALONE
        assert blame(extra) == ()

    def test_by_the_reference_alone_is_wrong(self) -> None:
        (culprit,) = blame(dict.fromkeys(self.names, Verdict.MISSING))
        assert culprit.blame == Blame.at(Stage.GRADIENT_CLIPPING, Phase.GRADIENT_NORM)


class TestOptimizerState:
    def test_that_is_missing_asks_for_its_parameters(self) -> None:
        (culprit,) = blame(dict.fromkeys(all_of("optimizer").split(), Verdict.MISSING))
        assert culprit.blame.stage is Stage.OPTIMIZER_STEP
        assert (culprit.reason, culprit.count) == (Reason.NO_STATE, 4)

    @pytest.mark.parametrize(
        ("kind", "given", "alone"),
        [
            ("optimizer", Reason.OPTIMIZER_STATE, Reason.STATE_OF_UNSEEN_GRADIENTS),
            ("param_after", Reason.ALL_NEW_PARAMETERS, Reason.PARAMETERS_OF_UNSEEN_GRADIENTS),
        ],
    )
    def test_nobody_says_of_unseen_gradients_that_they_pass(
        self, kind: str, given: Reason, alone: Reason
    ) -> None:
        (culprit,) = blame(all_of(kind))
        assert culprit.reason is given
        (culprit,) = blame(all_of(kind), unseen=("main_grad", "clipped_grad"))
        assert culprit.reason is alone


class TestUpdates:
    def test_of_copies_alone_accuse_the_step_and_not_each_module(self) -> None:
        """Parameters of the model were not made from what the optimizer updated."""
        slots = {"weight": Verdict.MISMATCH, "weight.master": Verdict.PASS}
        results = [
            TensorResult(
                id=id_of(f"{module}:param_after.{slot}"),
                verdict=verdict,
                order=0,
                statistics=ROUNDED,
                ratio=7.0,
            )
            for module in ("a", "b.c", "e")
            for slot, verdict in slots.items()
        ]
        (culprit,) = localize(results, {})
        assert culprit.blame == Blame.at(Stage.OPTIMIZER_STEP, Phase.UPDATE)
        assert culprit.reason is Reason.PARAMETERS_BUT_NOT_COPIES
        assert (culprit.count, culprit.total) == (3, 3)

    def test_that_are_exactly_equal_prove_nothing(self) -> None:
        """In low precision a parameter may not move at all: half of them is all that could."""
        wrong = "a:param_after.weight b.c:param_after.weight"
        still = dict.fromkeys(("b.d:param_after.weight", "e:param_after.weight"), EQUAL)
        assert [c.blame.stage for c in blame(wrong, statistics=still)] == [Stage.OPTIMIZER_STEP]
        assert {c.blame.modules for c in blame(wrong)} == {("a",), ("b.c",)}


class TestAbsentModules:
    def missing(self, *modules: str) -> tuple[Culprit, ...]:
        names = [name for name in STEP if name.partition(":")[0] in modules]
        return blame(dict.fromkeys(names, Verdict.MISSING))

    def test_are_blamed_before_all_else(self) -> None:
        (culprit,) = self.missing("e")
        assert culprit.blame == Blame.of("e", phase=Phase.MISSING)
        assert culprit.reason is Reason.NO_TENSOR_OF_IT

    def test_are_named_by_the_outermost(self) -> None:
        assert {c.blame.modules for c in self.missing("b", "b.c", "b.d")} == {("b",)}
        assert {c.blame.modules for c in self.missing("b.c", "e")} == {("b.c",), ("e",)}

    def test_are_not_those_of_which_something_is_there(self) -> None:
        (culprit,) = blame({"e:output.0": Verdict.MISSING})
        assert culprit.blame == Blame.of("e", phase=Phase.FORWARD)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, "7x its tolerance"),
        ({"ratio": 123456.0}, "123,000x its tolerance"),
        ({"ratio": float("inf")}, "far beyond its tolerance"),
        (
            {"finding": Finding.CONSTANT_FACTOR, "statistics": gained(2.0)},
            "7x its tolerance, a constant factor of 2",
        ),
        (
            {
                "verdict": Verdict.CONFLICT,
                "finding": Finding.REPLICAS_DISAGREE,
                "specifics": Specifics(ranks=(1,), other_ranks=(0, 2), relative_error=0.25),
            },
            "conflict, replicas on rank 1 and ranks 0, 2 disagree by 0.25 relative",
        ),
        ({"verdict": Verdict.NONFINITE}, "nonfinite"),
    ],
)
def test_the_reason_says_how_wrong_it_is(change: dict[str, Any], words: str) -> None:
    result = TensorResult(id=id_of("a:output.0"), verdict=Verdict.MISMATCH, order=0, ratio=7.0)
    (culprit,) = localize([replace(result, **change)], {})
    said = wording.reason(culprit, {result.id: replace(result, **change)})
    assert said == f"its output is the first wrong tensor: {words}"
