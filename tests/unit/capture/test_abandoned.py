"""A step that raised leaves nothing on a device that troubles the next tracer of a process."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.support.capturing import Recorded, read
from tests.support.fake_arena import FakeArenaDevice, take_for_gpu
from ttrace.capture.attach import attach
from ttrace.capture.settings import Settings
from ttrace.trace.fingerprint import FINGERPRINT
from ttrace.trace.gpu import Arenas

WIDTH = 256  # of activations that are fingerprinted


@pytest.fixture(autouse=True)
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    take_for_gpu(monkeypatch, FakeArenaDevice())
    monkeypatch.setattr(FINGERPRINT, "arenas", Arenas())  # which all runs of a process share


def recorded(folder: Path, monkeypatch: pytest.MonkeyPatch, *, raises: bool) -> Recorded:
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with monkeypatch.context() as patch:
        for name, value in (
            Settings(folder=folder, payload=FINGERPRINT.name).to_environment().items()
        ):
            patch.setenv(name, value)
        tracer = attach(model, optimizer)
    with suppress(ZeroDivisionError), tracer.step():
        output = model(torch.ones(WIDTH, WIDTH))
        if raises:
            raise ZeroDivisionError
        output.sum().backward()
        optimizer.step()
    return read(folder)


def test_a_run_after_a_step_that_raised_is_recorded_as_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = recorded(tmp_path / "first", monkeypatch, raises=False)
    broken = recorded(tmp_path / "broken", monkeypatch, raises=True)
    after = recorded(tmp_path / "after", monkeypatch, raises=False)
    assert after.ids == first.ids > broken.ids
    assert after.summary.faults == ()
    assert broken.trace.ranks[0].summary is None
