"""A bug from outside the zoo is registered, run and found like its own; nobody else sees it."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from torch import nn

import ttrace
from tests.support.tracing import explain
from ttrace.core.blame import Blame, Phase
from ttrace.errors import UsageError
from ttrace.lab.run import Function
from zoo.bug import Bug, Family
from zoo.registry import BUGS, bugs, find, register
from zoo.trials import Trials


def train(bug: str = "") -> None:
    """Two linears; gradients averaged by hand."""
    torch.manual_seed(0)
    ranks, rank = dist.get_world_size(), dist.get_rank()
    model, inputs = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 3)), torch.randn(8, 6)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with ttrace.attach(model, optimizer).step():
        model(inputs.chunk(ranks)[rank]).square().mean().backward()
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None
            dist.all_reduce(parameter.grad)
            if not (bug and name == "1.weight"):
                parameter.grad /= ranks
        optimizer.step()


PROBE = Bug(
    name="undivided-weight",
    family=Family.NATIVE,
    title="the gradient of one weight is summed over ranks, but not divided",
    origin="made up",
    layout="DP 2 by hand",
    expected=(Blame.of("1", phase=Phase.GRADIENT_REDUCTION),),
    reference=Function(train),
    candidate=Function(train, ranks=2, arguments=("undivided-weight",)),
    twin=Function(train, ranks=2),
)


@pytest.fixture
def probe() -> Iterator[Bug]:
    register(PROBE)
    yield find(PROBE.name, PROBE.family)
    del BUGS[PROBE.family, PROBE.name]


def test_a_bug_from_outside_is_found_and_its_twin_is_silent(probe: Bug, trials: Trials) -> None:
    assert probe in bugs(Family.NATIVE)
    wrong, twin = trials.bug(probe), trials.twin(probe)
    assert probe.is_named_by(wrong.named), explain(wrong.told)
    assert twin.is_silent, explain(twin.plain)


def test_a_name_is_taken_once(probe: Bug) -> None:
    with pytest.raises(UsageError, match="undivided-weight"):
        register(replace(probe, title="another"))


def test_an_unknown_bug_is_answered_with_the_known_names() -> None:
    with pytest.raises(KeyError, match="expert-divisor"):
        find("no-such-bug", Family.NATIVE)


A, B, C = (Blame.of(name, phase=Phase.FORWARD) for name in "abc")


@pytest.mark.parametrize(
    ("named", "right"),
    [((A, B), True), ((B, A), True), ((A,), False), ((A, B, C), False), ((A, A), False)],
)
def test_only_all_that_is_wrong_and_nothing_else_is_right(
    named: tuple[Blame, ...], right: bool
) -> None:
    assert replace(PROBE, expected=(A, B)).is_named_by(named) == right


@pytest.mark.parametrize(
    "change",
    [
        {"twin": PROBE.candidate},
        {"twin": replace(PROBE.twin, ranks=4)},
        {"expected": ()},
        {"origin": ""},
    ],
    ids=["twin-is-buggy", "twin-of-other-ranks", "nothing-expected", "no-origin"],
)
def test_a_bug_without_a_twin_an_answer_or_an_origin_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(UsageError, match="undivided-weight"):
        replace(PROBE, **change)  # type: ignore[arg-type]
