"""A step whose loop belongs to somebody else: it is entered and left by two calls."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import ttrace
from tests.support.capturing import attach, hook_count, read


def trained(
    tracer: ttrace.Tracer, model: nn.Module, optimizer: torch.optim.Optimizer, *, by_calls: bool
) -> None:
    data = torch.arange(8.0).reshape(2, 4)
    if not by_calls:
        with tracer.step():
            model(data).sum().backward()
            optimizer.step()
        return
    tracer.begin()
    model(data).sum().backward()
    optimizer.step()
    tracer.end()


def small() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def test_two_calls_record_what_a_context_does(tmp_path: Path) -> None:
    for name, by_calls in (("context", False), ("calls", True)):
        model, optimizer = small()
        tracer = attach(tmp_path / name, model, optimizer)
        trained(tracer, model, optimizer, by_calls=by_calls)
        assert hook_count(model, optimizer) == 0
    assert read(tmp_path / "calls").ids == read(tmp_path / "context").ids


def test_a_second_begin_and_a_second_end_do_nothing(tmp_path: Path) -> None:
    original = torch.autograd.backward
    model, optimizer = small()
    tracer = attach(tmp_path, model, optimizer, steps=2)
    tracer.end()
    tracer.begin()
    tracer.begin()
    with tracer.step():
        model(torch.ones(2, 4)).sum().backward()
    assert torch.autograd.backward is not original
    optimizer.step()
    tracer.end()
    tracer.end()
    assert torch.autograd.backward is original
    trained(tracer, model, optimizer, by_calls=True)
    assert read(tmp_path).trace.steps == (0, 1)


def test_an_untraced_tracer_has_them_too() -> None:
    model, optimizer = small()
    tracer = ttrace.attach(model, optimizer)
    trained(tracer, model, optimizer, by_calls=True)
    assert hook_count(model, optimizer) == 0


@pytest.mark.parametrize("where", ["_enter", "_leave"])
def test_a_fault_of_ours_ends_the_trace_and_not_the_run(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = torch.autograd.backward
    model, optimizer = small()
    tracer = attach(tmp_path, model, optimizer, steps=3)
    trained(tracer, model, optimizer, by_calls=True)

    def fail() -> None:
        raise RuntimeError("our own")

    monkeypatch.setattr(tracer, where, fail)
    trained(tracer, model, optimizer, by_calls=False)
    trained(tracer, model, optimizer, by_calls=True)
    assert torch.autograd.backward is original
    assert hook_count(model, optimizer) == 0
    summary = read(tmp_path).trace.ranks[0].summary
    assert summary is not None
    assert summary.steps == 1
    assert any("our own" in fault for fault in summary.faults)
