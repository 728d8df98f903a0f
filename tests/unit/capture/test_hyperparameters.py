from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from tests.support import tiny_train
from ttrace.adapters.base import Adapter
from ttrace.adapters.registry import find_adapter
from ttrace.capture.clipping import watch_clipping, watch_scaling
from ttrace.capture.hyperparameters import Hyperparameters
from ttrace.core.record import Owner
from ttrace.trace.reader import Trace


class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.eps, self.base, self.size, self._hidden, self.kind = 1e-6, 10000, 3, 0.5, "rms"


def found(hyper: Hyperparameters) -> dict[tuple[Owner, str, int], tuple[Any, ...]]:
    return {(each.owner, each.name, each.step): (each.values, each.owned) for each in hyper.found()}


RECORDED: Any = SimpleNamespace(is_muted=False)  # a recorder in a step that it records


@pytest.fixture
def model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 3), Norm(), nn.Dropout(0.25))


def test_of_modules_are_their_floating_point_numbers(model: nn.Sequential) -> None:
    """Sizes follow the layout; a base is often written as a whole number."""
    hyper = Hyperparameters(find_adapter(model), RECORDED)
    hyper.of_modules(0)
    assert found(hyper) == {
        (Owner.MODULE, "eps", 0): ((1e-6,), ("1",)),
        (Owner.MODULE, "base", 0): ((10000.0,), ("1",)),
        (Owner.MODULE, "p", 0): ((0.25,), ("2",)),
    }


def test_of_an_optimizer_belong_to_parameters_and_are_kept_when_they_change(
    model: nn.Sequential,
) -> None:
    groups: list[dict[str, Any]] = [
        {"params": [model[0].weight], "lr": 0.5},
        {"params": [model[1].weight]},
    ]
    optimizer = torch.optim.SGD(groups, lr=torch.tensor(0.25), momentum=0.5)
    hyper = Hyperparameters(find_adapter(model), RECORDED)
    hyper.of_optimizer(0, optimizer)
    hyper.of_optimizer(1, optimizer)
    optimizer.param_groups[1]["lr"] = 0.125
    hyper.of_optimizer(2, optimizer)
    told = {(e.values, e.step, e.owned) for e in hyper.found() if e.name == "lr"}
    assert told == {
        ((0.5,), 0, ("0.weight",)),
        ((0.25,), 0, ("1.weight",)),
        ((0.125,), 2, ("1.weight",)),
    }
    assert found(hyper)[Owner.PARAMETER, "momentum", 0] == ((0.5,), ("0.weight", "1.weight"))


@pytest.mark.parametrize("value", [math.inf, math.nan, None, "auto", (0.9, "x"), torch.ones(2)])
def test_what_is_no_finite_number_is_left_out(model: nn.Sequential, value: object) -> None:
    hyper = Hyperparameters(find_adapter(model), RECORDED)
    hyper.of_step(0, "max", value)
    assert hyper.found() == ()


def test_the_norm_to_clip_to_and_the_scale_of_a_loss_are_told() -> None:
    told: list[object] = []
    parameter = nn.Parameter(torch.ones(3))
    parameter.grad = torch.ones_like(parameter)
    with watch_clipping(lambda norm: norm, told.append), watch_scaling(told.append):
        nn.utils.clip_grad_norm_([parameter], 0.5)
        torch.amp.GradScaler("cpu", init_scale=8.0).scale(torch.ones(()))
    assert told == [0.5, 8.0]


def test_are_in_the_trace_of_a_run(tmp_path: Path) -> None:
    trace = Trace.open(tiny_train.record(tmp_path / "out"))
    summary = trace.ranks[0].summary
    assert summary is not None
    told = {each.name: each for each in summary.hyperparameters}
    assert told["lr"].values == (1e-2,)
    assert set(told["lr"].owned) == {
        *("first.weight", "first.bias", "second.weight", "second.bias"),
    }
    assert told["betas"].values == (0.9, 0.999)
    assert told["scale"].owned == ("second",)


class Flat(Adapter):
    """One tensor is updated for all parameters, as under ZeRO."""

    name = "flat"
    flat = nn.Parameter(torch.zeros(4))

    def updated(self, parameter: nn.Parameter) -> torch.Tensor:
        return self.flat


def test_of_one_tensor_belong_to_every_parameter_that_it_stands_for() -> None:
    hyper = Hyperparameters(Flat(nn.Linear(2, 2)), RECORDED)
    hyper.of_optimizer(0, torch.optim.SGD([Flat.flat], lr=0.5))
    (rate,) = (each for each in hyper.found() if each.name == "lr")
    assert rate.owned == ("weight", "bias")


def test_of_steps_that_are_let_pass_are_not_kept(model: nn.Sequential) -> None:
    """A learning rate that changes at every step would fill memory in a long run."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    recorder: Any = SimpleNamespace(is_muted=True)
    hyper = Hyperparameters(find_adapter(model), recorder)
    for step in range(10):
        optimizer.param_groups[0]["lr"] = 1 / (1 + step)
        recorder.is_muted = step < 9
        hyper.of_optimizer(step, optimizer)
    assert {key[2]: values for key, (values, _) in found(hyper).items() if key[1] == "lr"} == {
        9: (0.1,)
    }
