"""Tensors that a package stores in a form of its own are on no sheet, and in that form."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.support.fake_arena import FakeArenaDevice
from tests.support.int8_blocks import Int8Blocks
from tests.support.payload_packages import install
from tests.support.sheets_run import trained
from ttrace.trace.payloads import forget_installed


class OfMatrices(Int8Blocks):
    """Takes what is float32 and has two dims, asked or not."""

    def takes(self, tensor: torch.Tensor, *, asked: bool) -> bool:
        return tensor.dim() == 2 and tensor.dtype == torch.float32


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    install(monkeypatch, tmp_path / "site", f"{__name__}:{OfMatrices.__name__}")
    yield
    monkeypatch.undo()
    forget_installed()


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("is_on_device", [False, True])
def test_a_packages_payload_takes_its_tensors_wherever_they_are(
    tmp_path: Path, is_on_device: bool
) -> None:
    device = FakeArenaDevice() if is_on_device else None
    found = trained(tmp_path / "trace", device=device)
    for kind in ("param", "main_grad", "param_after"):
        weight, bias = (found.record(f"0:{kind}.{name}") for name in ("weight", "bias"))
        assert weight.payload is not None
        assert (weight.payload.name, bias.payload) == (OfMatrices.name, None)
    assert device is None or device.batches  # of what is left


def test_without_the_package_they_are_fingerprints(tmp_path: Path) -> None:
    """The companion: it is the package that makes the difference."""
    found = trained(tmp_path, device=FakeArenaDevice())
    weight = found.record("0:param.weight")
    assert weight.payload is not None
    assert weight.payload.name == "fingerprint"
