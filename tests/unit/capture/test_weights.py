"""Local gradients of parameters: one for every microbatch, the sum over its uses."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.support.capturing import Calling, attach, hook_count, read, record


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def backward(model: nn.Module, x: Tensor) -> None:
    model(x).square().mean().backward()


def two_layers() -> Any:
    return nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))


def tied() -> Calling:
    model = Calling(
        lambda self, x: self.head(self.embed(x).tanh()),
        embed=nn.Embedding(8, 4),
        head=nn.Linear(4, 8, bias=False),
    )
    model.head.weight = model.embed.weight
    return model


def test_each_microbatch_has_its_own_and_they_add_up(tmp_path: Path) -> None:
    model, data = two_layers(), torch.randn(3, 2, 4)
    step = lambda: list(map(partial(backward, model), data))  # noqa: E731
    trace = record(tmp_path, model, step)
    for module, name in (("0", "weight"), ("1", "bias")):
        parts = [trace.value(f"{module}:grad.{name}", microbatch=m) for m in range(3)]
        assert torch.allclose(
            parts[0] + parts[1] + parts[2], trace.value(f"{module}:main_grad.{name}")
        )
        assert not torch.equal(parts[0], parts[1])
    model.zero_grad()
    backward(model, data[1])
    assert torch.equal(trace.value("0:grad.weight", microbatch=1), model[0].weight.grad)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_later_backward_knows_its_microbatch(order: tuple[int, int], tmp_path: Path) -> None:
    model, data = two_layers(), torch.randn(2, 2, 4)

    def step() -> None:
        losses = [model(x).square().mean() for x in data]
        for microbatch in order:
            losses[microbatch].backward()

    trace = record(tmp_path, model, step)
    for microbatch in (0, 1):
        model.zero_grad()
        backward(model, data[microbatch])
        found = trace.value("0:grad.weight", microbatch=microbatch)
        assert torch.equal(found, model[0].weight.grad)


def test_one_backward_of_two_microbatches_has_one_sum(tmp_path: Path) -> None:
    model, data = two_layers(), torch.randn(2, 2, 4)
    step = lambda: sum(model(x).square().mean() for x in data).backward()  # noqa: E731
    trace = record(tmp_path, model, step)
    (found,) = trace.records("0:grad.weight")
    value = trace.value("0:grad.weight", microbatch=found.microbatch)
    assert torch.equal(value, model[0].weight.grad)


def test_an_unused_parameter_has_none_and_is_no_fault(tmp_path: Path) -> None:
    """In one microbatch, or in all."""
    model = Calling(
        lambda self, x, on: self.always(self.sometimes(x) if on else x),
        always=nn.Linear(4, 4),
        sometimes=nn.Linear(4, 4),
        never=nn.Linear(4, 4),
    )
    step = lambda: [model(torch.ones(2, 4), on).sum().backward() for on in (True, False)]  # noqa: E731
    trace = record(tmp_path, model, step)
    assert [r.microbatch for r in trace.records("always:grad.weight")] == [0, 1]
    assert [r.microbatch for r in trace.records("sometimes:grad.weight")] == [0]
    assert not trace.records("never:grad.weight")
    assert trace.summary.faults == ()


def test_a_frozen_parameter_has_none(tmp_path: Path) -> None:
    model = two_layers()
    model[0].requires_grad_(False)
    trace = record(tmp_path, model, lambda: backward(model, torch.ones(2, 4)))
    assert not trace.records("0:grad.weight")
    assert trace.records("1:grad.weight")


def test_tied_parameters_have_one_under_their_first_name(tmp_path: Path) -> None:
    model = tied()
    trace = record(tmp_path, model, lambda: model(torch.arange(6)).square().mean().backward())
    assert torch.equal(trace.value("embed:grad.weight"), model.embed.weight.grad)
    assert not any(name.startswith("head:grad.") for name in trace.ids)


def test_a_module_called_twice_has_the_sum(tmp_path: Path) -> None:
    model = Calling(lambda self, x: self.linear(self.linear(x)), linear=nn.Linear(4, 4))
    trace = record(tmp_path, model, lambda: backward(model, torch.ones(2, 4)))
    assert torch.equal(trace.value("linear:grad.weight"), model.linear.weight.grad)


def test_parameters_used_by_a_parent_are_seen(tmp_path: Path) -> None:
    """nn.MultiheadAttention never calls its output projection."""
    model: Any = nn.MultiheadAttention(4, 2)
    x = torch.randn(3, 2, 4)
    trace = record(tmp_path, model, lambda: model(x, x, x)[0].square().mean().backward())
    found = trace.value("out_proj:grad.weight")
    assert torch.equal(found, model.out_proj.weight.grad)
    assert not any("no local gradient" in note for note in trace.summary.notes)


@pytest.mark.parametrize("reentrant", [True, False])
def test_recomputation_counts_once(reentrant: bool, tmp_path: Path) -> None:
    """Also where a parameter is used in two regions, each with a backward of its own."""

    def forward(self: Calling, x: Tensor) -> Tensor:
        x = self.first(x)  # a reentrant region needs an input with a gradient
        for _ in range(2):
            x = checkpoint(self.part, x, use_reentrant=reentrant)
        return x

    model = Calling(forward, part=nn.Sequential(nn.Linear(4, 4), nn.Tanh()), first=nn.Linear(4, 4))
    data = torch.randn(2, 2, 4)

    def step() -> None:
        for x in data:
            backward(model, x)

    trace = record(tmp_path, model, step)
    assert trace.summary.faults == ()
    parts = [trace.value("part.0:grad.weight", microbatch=m) for m in (0, 1)]
    assert torch.allclose(parts[0] + parts[1], model.part[0].weight.grad)


def test_gradients_of_a_second_backward_stand_by_themselves(tmp_path: Path) -> None:
    model = nn.Linear(4, 1)

    def step() -> None:
        loss = model(torch.ones(2, 4)).mean()
        loss.backward(retain_graph=True)
        (2 * loss).backward()

    trace = record(tmp_path, model, step)
    first, second = trace.value(":grad.weight"), trace.value(":grad@1.weight")
    assert torch.equal(second, 2 * first)
    assert trace.summary.faults == ()


def test_a_gradient_made_behind_autograd_is_noted(tmp_path: Path) -> None:
    model = nn.Linear(4, 1)

    def step() -> None:
        model(torch.ones(2, 4))
        model.weight.grad = torch.ones(1, 4)

    trace = record(tmp_path, model, step)
    (note,) = trace.summary.notes
    assert "no local gradient was seen of weight" in note


@pytest.mark.parametrize("build", [two_layers, tied])
def test_no_hook_is_left(build: Callable[[], nn.Module], tmp_path: Path) -> None:
    model = build()
    x = torch.arange(4) if build is tied else torch.ones(2, 4)
    tracer = attach(tmp_path, model)
    with tracer.step():
        backward(model, x)
        assert hook_count(model) > 0
    assert hook_count(model) == 0
    assert read(tmp_path).summary.faults == ()


def test_a_step_that_raises_leaves_no_hook(tmp_path: Path) -> None:
    model = two_layers()
    tracer = attach(tmp_path, model)
    with pytest.raises(RuntimeError, match="shapes"), tracer.step():
        backward(model, torch.ones(2, 5))
    assert hook_count(model) == 0
