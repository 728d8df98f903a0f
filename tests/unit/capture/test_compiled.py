"""Compiled models are recorded too: hooks stay out of the compiler's sight."""

from pathlib import Path

import pytest
import torch
from torch import nn

import ttrace
from ttrace.capture.settings import OUT
from ttrace.trace.reader import Trace


def record(folder: Path, *, compiled: bool, monkeypatch: pytest.MonkeyPatch) -> Trace:
    torch.manual_seed(0)
    model: nn.Module = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4))
    if compiled:
        # Not inductor, which needs a compiler on the machine; the hooks are traced all the same.
        model = torch.compile(model, backend="eager")  # type: ignore[assignment]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monkeypatch.setenv(OUT, str(folder))
    tracer = ttrace.attach(model, optimizer)
    with tracer.step():
        model(torch.ones(2, 8)).square().mean().backward()
        optimizer.step()
    return Trace.open(folder)


@pytest.mark.filterwarnings("ignore")
def test_a_compiled_model_is_recorded_as_the_plain_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = record(tmp_path / "plain", compiled=False, monkeypatch=monkeypatch)
    compiled = record(tmp_path / "compiled", compiled=True, monkeypatch=monkeypatch)
    assert set(compiled.by_id()) == set(plain.by_id())
    summary = compiled.ranks[0].summary
    assert summary is not None
    assert summary.faults == ()
    assert ttrace.check(plain.path, compiled.path).exit_code == 0
