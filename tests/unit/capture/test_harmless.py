"""Capture changes no number of the run, and the run cannot change what was captured."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import ttrace
from tests.support.capturing import Calling, attach, record
from ttrace.capture.tracer import OffTracer


class RMSNorm(nn.Module):
    """Uses its input twice."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * self.weight


def residual() -> nn.Module:
    block = nn.Sequential(RMSNorm(8), nn.Linear(8, 16), nn.SiLU(), nn.Linear(16, 8))
    return Calling(lambda self, x: self.out(x + self.block(x)), block=block, out=nn.Linear(8, 8))


def in_place() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(inplace=True), nn.Linear(8, 8))


def tied() -> nn.Module:
    model = Calling(
        lambda self, x: self.head(self.norm(self.embed((x.abs() * 9).long() % 16)).sum(1)),
        embed=nn.Embedding(16, 8),
        norm=RMSNorm(8),
        head=nn.Linear(8, 16, bias=False),
    )
    model.head.weight = model.embed.weight
    return model


def dropout() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 8), nn.Dropout(0.1))


def attention() -> nn.Module:
    return nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)


MODELS = [residual, in_place, tied, dropout, attention]


def train(build: Callable[[], nn.Module], start: Callable[..., ttrace.Tracer]) -> list[Tensor]:
    """Two steps of two microbatches; every number a run could care about."""
    torch.manual_seed(0)
    model = build()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    tracer = start(model, optimizer)
    numbers = []
    for _ in range(2):
        with tracer.step():
            optimizer.zero_grad()
            for x in torch.randn(2, 4, 8):
                loss = model(x).square().sum()
                loss.backward()
                numbers.append(loss.detach().clone())
            numbers += [parameter.grad.clone() for parameter in model.parameters()]  # type: ignore[union-attr]
            optimizer.step()
        numbers += [parameter.detach().clone() for parameter in model.parameters()]
    return [*numbers, torch.get_rng_state()]


def equal(ours: list[Tensor], theirs: list[Tensor]) -> bool:
    return len(ours) == len(theirs) and all(map(torch.equal, ours, theirs))


@pytest.mark.parametrize("build", MODELS)
def test_numbers_are_bitwise_the_same_with_capture_on_and_off(
    build: Callable[[], nn.Module], tmp_path: Path
) -> None:
    untraced = train(build, lambda *_: OffTracer())
    traced = train(build, lambda *watched: attach(tmp_path, *watched, steps=2))
    assert equal(traced, untraced)


@pytest.mark.parametrize("build", MODELS)
def test_one_rounding_is_enough_to_tell_two_runs_apart(
    build: Callable[[], nn.Module], tmp_path: Path
) -> None:
    untraced = train(build, lambda *_: OffTracer())
    noisy = train(build, lambda *watched: attach(tmp_path, *watched, noise_seed=1))
    assert not equal(noisy, untraced)


class Mutating(nn.Module):
    """Changes in place what its first child returned."""

    def __init__(self, change: Callable[[Tensor], object]) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)
        self.change = change
        self.seen: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        y = self.one(x)
        self.seen.append(y.detach().clone())
        self.change(y)
        self.seen.append(y.detach().clone())
        return self.two(y)


@pytest.mark.parametrize(
    "change",
    [
        lambda y: y.mul_(2),
        lambda y: y[:, :2].zero_(),
        lambda y: y.data.mul_(2),
        lambda y: y.detach().numpy().fill(3),
    ],
    ids=["in place", "through a view", "through data", "through numpy"],
)
def test_values_are_those_at_the_time_of_the_call(
    change: Callable[[Tensor], object], tmp_path: Path
) -> None:
    """Collectives work in place as well, and like `.data` they do not tell autograd."""
    model = Mutating(change)
    trace = record(tmp_path, model, lambda: model(torch.ones(2, 4)).sum().backward())
    before, after = model.seen
    assert not torch.equal(before, after)
    assert torch.equal(trace.value("one:output.0"), before)
    assert torch.equal(trace.value("two:input.0"), after)
    assert trace.record("two:input.0").same_as is None


def test_a_module_that_works_in_place_runs_and_is_recorded(tmp_path: Path) -> None:
    model = in_place()
    trace = record(tmp_path, model, lambda: model(torch.randn(4, 8)).sum().backward())
    linear, relu = trace.value("0:output.0"), trace.value("1:output.0")
    assert linear.min() < 0
    assert torch.equal(relu, linear.clamp(min=0))
    passed = trace.value("1:grad_output.0") * (linear > 0)
    assert torch.equal(trace.value("0:grad_output.0"), passed)
    assert (trace.summary.unfired, trace.summary.faults) == ((), ())


def through_a_view(change: Callable[[Tensor], object]) -> nn.Module:
    """The output of `cut` is a view of its input, and the caller changes it."""

    def forward(self: Calling, x: Tensor) -> Tensor:
        part = self.cut(self.linear(x))
        change(part)
        return self.out(part)

    cut = Calling(lambda _, x: x[:, :4])
    return Calling(forward, linear=nn.Linear(8, 8), cut=cut, out=nn.Linear(4, 1))


def test_a_gradient_lost_by_a_change_of_a_view_is_counted_and_named(tmp_path: Path) -> None:
    model = through_a_view(lambda part: part.mul_(2))
    trace = record(tmp_path, model, lambda: model(torch.randn(2, 8)).sum().backward())
    assert trace.summary.unfired == ("step0/cut:grad_output.0",)
    assert trace.summary.hooks_expected == trace.summary.hooks_fired + 1
    assert trace.summary.faults == ()


def test_a_gradient_of_a_view_that_nobody_changes_is_recorded(tmp_path: Path) -> None:
    model = through_a_view(lambda _: None)
    trace = record(tmp_path, model, lambda: model(torch.randn(2, 8)).sum().backward())
    assert trace.summary.unfired == ()
    assert "cut:grad_output.0" in trace.ids


def test_an_output_that_no_loss_depends_on_is_named(tmp_path: Path) -> None:
    model = Calling(lambda self, x: (self.a(x), self.b(x))[0], a=nn.Linear(4, 1), b=nn.Linear(4, 1))
    trace = record(tmp_path, model, lambda: model(torch.ones(2, 4)).sum().backward())
    assert trace.summary.unfired == ("step0/b:grad_output.0",)


def test_a_gradient_that_two_branches_share_is_recorded_for_both(tmp_path: Path) -> None:
    """Autograd hands one tensor to both sides of a sum, and may add to it in place."""
    model = Calling(
        lambda self, x: self.out(self.a(x) + self.b(x)),
        a=nn.Linear(4, 4),
        b=nn.Linear(4, 4),
        out=nn.Linear(4, 1),
    )
    trace = record(tmp_path, model, lambda: model(torch.randn(2, 4)).square().sum().backward())
    expected = trace.value("out:grad_input.0")
    assert torch.equal(trace.value("a:grad_output.0"), expected)
    assert torch.equal(trace.value("b:grad_output.0"), expected)
