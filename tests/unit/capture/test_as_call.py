"""A method that somebody calls instead of its model counts as a call of it."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

import ttrace
from tests.support.capturing import attach, hook_count, read


class Learner(nn.Module):
    """Its step is either called by its name, or is what a wrapper makes of its forward."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.linear(x)
        return y

    def training_step(self, batch: torch.Tensor, number: int) -> torch.Tensor:
        y: torch.Tensor = self(batch[:, :4])
        return y.sum()


class Redirected(Learner):
    """As a trainer does where it wraps the model: a call is a step, the next one inside is not."""

    def forward(self, x: torch.Tensor, number: int | None = None) -> torch.Tensor:
        return super().forward(x) if number is None else self.training_step(x, number)


def trained(folder: Path, model: Learner, *, as_call: bool) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tracer = attach(folder, model, optimizer)
    step = tracer.as_call(model, model.training_step) if as_call else model
    with tracer.step():
        step(torch.arange(10.0).reshape(2, 5), 0).backward()
        optimizer.step()
    assert hook_count(model, optimizer) == 0


def test_a_method_is_recorded_as_the_call_that_a_wrapper_makes_of_it(tmp_path: Path) -> None:
    trained(tmp_path / "method", Learner(), as_call=True)
    trained(tmp_path / "wrapped", Redirected(), as_call=False)
    ids = read(tmp_path / "method").ids
    assert ids == read(tmp_path / "wrapped").ids
    assert {":input.0", "#1:input.0"} <= ids


def test_hooks_of_others_do_not_meet_the_arguments_of_the_method(tmp_path: Path) -> None:
    model = Learner()
    met: list[int] = []
    model.register_forward_pre_hook(lambda _, args: met.append(len(args)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tracer = attach(tmp_path, model, optimizer)
    with tracer.step():
        tracer.as_call(model, model.training_step)(torch.ones(2, 5), 0).backward()
        optimizer.step()
    assert met == [1]


def test_it_is_the_method_alone_after_the_last_step(tmp_path: Path) -> None:
    model = Learner()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tracer = attach(tmp_path, model, optimizer)
    step = tracer.as_call(model, model.training_step)
    for _ in range(2):
        with tracer.step():
            step(torch.ones(2, 5), 0).backward()
            optimizer.step()
    assert read(tmp_path).trace.steps == (0,)


def test_a_model_that_is_not_attached_keeps_its_method(tmp_path: Path) -> None:
    model, other = Learner(), Learner()
    tracer = attach(tmp_path, model, torch.optim.SGD(model.parameters(), lr=0.1))
    step = tracer.as_call(other, other.training_step)
    assert step == other.training_step


def test_without_a_traced_run_it_is_the_method() -> None:
    model = Learner()
    assert ttrace.attach(model).as_call(model, model.training_step) == model.training_step
