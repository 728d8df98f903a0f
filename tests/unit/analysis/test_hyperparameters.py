from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.made_results import tensor
from tests.support.made_traces import record_of, trace_of
from ttrace.analysis.hyperparameters import differences, explained
from ttrace.core.blame import Blame, Culprit, Phase, Reason, Stage
from ttrace.core.ids import TensorId
from ttrace.core.record import CLIPPED_TO, Difference, Hyperparameter, Owner, Summary
from ttrace.core.rows import RecordRows
from ttrace.report.wording import reason
from ttrace.trace.reader import Trace


def rate(value: float, *owned: str, step: int = 0) -> Hyperparameter:
    return Hyperparameter(owner=Owner.PARAMETER, name="lr", values=(value,), step=step, owned=owned)


def told(*ranks: tuple[Hyperparameter, ...], steps: int = 1) -> Trace:
    """A trace of so many ranks, each of which says this of its numbers."""
    made = trace_of(*(record_of(":loss", rank, ()) for rank in range(len(ranks))))
    records = [
        replace(each, id=replace(each.id, step=step))
        for step in range(steps)
        for each in made.ranks[0].records
    ]
    return Trace(
        path=made.path,
        ranks={
            rank: replace(
                made.ranks[rank],
                records=RecordRows.of(records),
                summary=Summary(
                    steps=steps, hooks_expected=0, hooks_fired=0, hyperparameters=numbers
                ),
            )
            for rank, numbers in enumerate(ranks)
        },
    )


class TestDifferences:
    def test_are_none_of_equal_numbers_in_other_groups(self) -> None:
        whole = told((rate(0.5, "a.weight", "b.weight"),))
        parts = told((rate(0.5, "a.weight"),), (rate(0.5, "b.weight"),))
        assert differences(whole, parts) == ()

    def test_name_the_rank_and_its_parameters(self) -> None:
        whole = told((rate(0.5, "a.weight", "b.weight"),))
        (found,) = differences(whole, told((rate(0.5, "a.weight"),), (rate(0.25, "b.weight"),)))
        assert (found.reference, found.candidate) == ((0.5,), (0.25,))
        assert (found.owned, found.ranks) == (("b.weight",), (1,))

    def test_on_all_ranks_name_none(self) -> None:
        (found,) = differences(
            told((rate(0.5, "a.weight"),)), told(*[(rate(1.0, "a.weight"),)] * 2)
        )
        assert found.ranks == ()

    def test_are_of_the_step_from_which_on_they_hold(self) -> None:
        falling = told((rate(0.5, "a.weight"), rate(0.25, "a.weight", step=2)), steps=3)
        (found,) = differences(falling, told((rate(0.5, "a.weight"),), steps=3))
        assert (found.reference, found.candidate, found.step) == ((0.25,), (0.5,), 2)

    def test_of_what_one_run_lacks_are_none(self) -> None:
        assert differences(told((rate(0.5, "a.weight"),)), told((rate(1.0, "b.weight"),))) == ()


RATE = Difference(
    owner=Owner.PARAMETER,
    name="lr",
    reference=(2.5e-4,),
    candidate=(5e-4,),
    owned=("b.weight", "c.weight"),
    ranks=(1,),
)
EPS = Difference(
    owner=Owner.MODULE,
    name="eps",
    reference=(1e-5,),
    candidate=(1e-3,),
    owned=("1.norm", "2.norm"),
)
CLIP = Difference(owner=Owner.STEP, name=CLIPPED_TO, reference=(1.0,), candidate=(0.5,))


def update(name: str, ratio: float = 9.0) -> TensorId:
    return tensor(TensorId.parse(f"step0/{name}:param_after.weight"), 0, ratio).id


def culprit(blame: Blame, *evidence: TensorId, why: Reason = Reason.NEW_PARAMETER) -> Culprit:
    return Culprit(blame=blame, reason=why, evidence=evidence)


class TestExplained:
    def test_updates_of_modules_with_another_rate_are_one_optimizer_step(self) -> None:
        tensors = [
            tensor(update(name), 0, ratio) for name, ratio in (("a", 0.5), ("b", 9.0), ("c", 9.0))
        ]
        named = [culprit(Blame.of(n, phase=Phase.UPDATE), update(n)) for n in ("b", "c")]
        (found,), unused = explained(named, [RATE], tensors)
        assert found.blame == Blame.at(Stage.OPTIMIZER_STEP, Phase.UPDATE)
        assert (found.count, found.total, found.differences) == (2, 3, (RATE,))
        assert unused == ()
        words = reason(found, {each.id: each for each in tensors})
        assert words.endswith("; lr is 0.0005, the reference's 0.00025, on rank 1")

    def test_an_update_with_the_same_rate_stays_by_itself(self) -> None:
        named = [culprit(Blame.of("a", phase=Phase.UPDATE), update("a"))]
        assert explained(named, [RATE], []) == (tuple(named), (RATE,))

    def test_a_norm_is_told_its_own_eps(self) -> None:
        output = TensorId.parse("step0/2.norm:output.0")
        named = culprit(
            Blame.of("2.norm", phase=Phase.FORWARD), output, why=Reason.FIRST_WRONG_OUTPUT
        )
        (found,), unused = explained([named], [EPS], [])
        assert found.differences == (replace(EPS, owned=("2.norm",)),)
        assert unused == ()
        assert reason(found, {}).endswith("; eps of 2.norm is 0.001, the reference's 1e-05")

    @pytest.mark.parametrize(
        ("stage", "is_explained"),
        [(Stage.GRADIENT_CLIPPING, True), (Stage.OPTIMIZER_STEP, False)],
    )
    def test_a_norm_to_clip_to_explains_clipping(self, stage: Stage, *, is_explained: bool) -> None:
        named = culprit(Blame.at(stage, Phase.CLIP), why=Reason.CLIPPED_GRADIENTS)
        (found,), unused = explained([named], [CLIP], [])
        assert bool(found.differences) == is_explained
        assert bool(unused) != is_explained

    def test_a_difference_without_a_culprit_is_left_over(self) -> None:
        assert explained([], [RATE, EPS], []) == ((), (RATE, EPS))
