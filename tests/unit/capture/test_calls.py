"""Microbatches, calls apart from them, and losses: how they are numbered."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.support.capturing import record


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))


def test_a_forward_without_gradients_is_no_microbatch(tmp_path: Path) -> None:
    net = model()

    def step() -> None:
        for number in range(2):
            with torch.no_grad():
                net(torch.full((2, 4), float(number)))
            net(torch.ones(2, 4)).sum().backward()

    trace = record(tmp_path, net, step)
    for name in ("0:output.0", "0:grad_output.0", ":loss", "0:grad.weight", "0~no_grad:output.0"):
        assert [found.microbatch for found in trace.records(name)] == [0, 1], name
    assert trace.summary.hooks_expected == trace.summary.hooks_fired


def test_a_module_called_by_itself_without_gradients_is_apart_too(tmp_path: Path) -> None:
    net = model()

    def step() -> None:
        with torch.no_grad():
            net[0](torch.zeros(2, 4))
        net(torch.ones(2, 4)).sum().backward()

    trace = record(tmp_path, net, step)
    assert len(trace.records("0:output.0")) == len(trace.records("0~no_grad:output.0")) == 1


def test_a_model_under_reentrant_checkpointing_keeps_its_microbatch(tmp_path: Path) -> None:
    net = model()

    def step() -> None:
        x = torch.ones(2, 4, requires_grad=True)
        checkpoint(net, x, use_reentrant=True).sum().backward()

    trace = record(tmp_path, net, step)
    assert not any("no_grad" in name for name in trace.ids)
    assert trace.records(":loss")


def test_a_call_that_a_hook_of_the_run_breaks_off_is_left(tmp_path: Path) -> None:
    net = model()

    def stop(*_: object) -> None:
        raise StopIteration("planted")

    def step() -> None:
        handle = net[0].register_forward_hook(stop, prepend=True)
        with pytest.raises(StopIteration, match="planted"):
            net(torch.ones(2, 4))
        handle.remove()
        net(torch.ones(2, 4)).sum().backward()

    trace = record(tmp_path, net, step)
    assert [found.microbatch for found in trace.records("0:input.0")] == [0, 1]
    assert [found.microbatch for found in trace.records(":output.0")] == [1]
    assert trace.summary.faults == ()


def test_losses_of_one_microbatch_are_told_apart_by_their_order(tmp_path: Path) -> None:
    net = model()

    def step() -> None:
        for _ in range(2):
            output = net(torch.ones(2, 4))
            output.sum().backward(retain_graph=True)
            (3 * output).sum().backward()

    trace = record(tmp_path, net, step)
    for microbatch in range(2):
        first = trace.value(":loss", microbatch=microbatch)
        assert trace.value(":loss@1", microbatch=microbatch) == 3 * first


def test_a_gradient_that_the_step_asks_for_is_not_the_one_of_the_loss(tmp_path: Path) -> None:
    net = model()

    def step() -> None:
        x = torch.ones(2, 4, requires_grad=True)
        output = net(x)
        (slope,) = torch.autograd.grad(output.sum(), x, create_graph=True)
        (output.sum() + (slope.norm() - 1) ** 2).backward()

    trace = record(tmp_path, net, step)
    assert trace.summary.faults == ()
    assert {"0:grad_output.0", "0:grad_output@grad.0", ":loss"} <= trace.ids
    assert ":loss@1" not in trace.ids


def test_a_gradient_can_be_differentiated_while_noise_moves_it(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 4), nn.Softplus(), nn.Linear(4, 1))

    def step() -> None:
        net.zero_grad()
        x = torch.ones(2, 4, requires_grad=True)
        (slope,) = torch.autograd.grad(net(x).sum(), x, create_graph=True)
        slope.square().sum().backward()

    step()
    expected = [p.grad.clone() for p in net.parameters() if p.grad is not None]
    record(tmp_path, net, step, noise_seed=1)
    found = [p.grad for p in net.parameters() if p.grad is not None]
    assert len(found) == len(expected) == 3
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-7)


def test_a_gradient_that_parameters_are_asked_for_trains(tmp_path: Path) -> None:
    net = model()
    trace = record(
        tmp_path,
        net,
        lambda: torch.autograd.grad(net(torch.ones(2, 4)).sum(), list(net.parameters())),
    )
    assert {":loss", "0:grad_output.0", "0:grad.weight"} <= trace.ids
