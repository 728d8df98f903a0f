"""Tokens that go to another expert are counted, not taken for errors of the expert."""

import math

import pytest
import torch

from tests.support.judging import made_case
from ttrace.analysis.compare.tokens import leave_out_moved, moved_before
from ttrace.analysis.judge.reduce import weigh
from ttrace.analysis.judge.rules.values import MovedTokens
from ttrace.analysis.judge.rulings import Accusation, Exhibit, Weight
from ttrace.analysis.tolerance import allowed_moves
from ttrace.core.finding import Finding, Specifics
from ttrace.core.ids import Kind, TensorId
from ttrace.core.logical import Alignment
from ttrace.core.results import TensorResult, Verdict
from ttrace.report import wording

ID = TensorId(step=0, module="experts.0", kind=Kind.INPUT, slot="0")


def judged(moved: int, allowed: float, finding: Finding | None = None) -> TensorResult:
    alignment = Alignment(id=ID, reference=None, candidate=None)
    exhibit = Exhibit(alignment=alignment, order=0, moved=moved, allowed_moves=allowed)
    weight = Weight.PASS
    passes = Accusation(id=ID, verdict=Verdict.PASS, weight=weight, finding=finding, ratio=0.5)
    moves = MovedTokens().accuse(made_case({ID: exhibit}), ())
    return weigh({ID: exhibit}, [passes, *moves])[ID]


def test_tokens_of_one_run_are_left_out_and_the_others_kept() -> None:
    expected = torch.arange(1.0, 25.0).reshape(2, 3, 4)
    found = expected.clone()
    expected[0, 1] = 0  # only the candidate sent this token here
    found[1, 2] = 0  # only the reference sent that one
    found[1, 0, 3] += 5  # an error of a token that both have
    assert leave_out_moved(expected, found, 2) == 2
    assert (found - expected).nonzero().tolist() == [[1, 0, 3]]


def test_without_further_dims_every_number_is_a_token() -> None:
    expected, found = torch.tensor([[0.0, 2.0, 3.0]]), torch.tensor([[1.0, 2.0, 4.0]])
    assert leave_out_moved(expected, found, 2) == 1
    assert found.tolist() == [[0, 2, 4]]


def test_no_token_may_move_where_noise_moves_none() -> None:
    assert allowed_moves([0, 0]) == 0
    result = judged(1, allowed_moves([0, 0]))
    assert result.verdict is Verdict.MISMATCH
    assert result.ratio == math.inf
    assert result.finding is Finding.TOKENS_MOVED
    assert wording.finding(result) == "1 token routed elsewhere, noise explains 0"


def test_as_many_as_noise_moves_pass_with_a_note() -> None:
    result = judged(2, allowed_moves([0, 1]), Finding.EQUAL)
    assert result.verdict is Verdict.PASS
    assert (result.finding, result.specifics) == (
        Finding.EQUAL,
        Specifics(moved=2, allowed_moves=allowed_moves([0, 1])),
    )
    assert wording.finding(result) == "equal; 2 tokens routed elsewhere"


@pytest.mark.parametrize("moved", [7, 100])
def test_many_more_than_noise_moves_are_a_mismatch(moved: int) -> None:
    assert judged(moved, allowed_moves([1])).verdict is Verdict.MISMATCH


def test_nothing_moved_changes_nothing() -> None:
    assert judged(0, 0.0).specifics is None


def test_the_same_token_of_another_expert_is_another() -> None:
    expected = torch.ones(2, 3, 1, 4)  # expert, position, sample, hidden
    found = expected.clone()
    found[1, 2, 0] = 0
    assert leave_out_moved(expected, found, 3) == 1
    assert (expected != 0).any(-1).sum() == 5


def of(module: str, kind: Kind) -> TensorId:
    return TensorId(step=0, module=module, kind=kind, slot="0")


def test_tokens_that_moved_before_are_missing_in_all_that_is_inside() -> None:
    moved = {of("mlp.experts", Kind.INPUT): 3, of("mlp.experts.1", Kind.OUTPUT): 7}
    assert moved_before(of("mlp.experts", Kind.INPUT), moved) == 0
    assert moved_before(of("mlp.experts", Kind.OUTPUT), moved) == 3
    assert moved_before(of("mlp.experts.0", Kind.INPUT), moved) == 3
    assert moved_before(of("mlp.experts.1.linear", Kind.GRAD), moved) == 3
    assert moved_before(of("mlp.expertsX", Kind.OUTPUT), moved) == 0
