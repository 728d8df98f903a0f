"""A tensor without memory of its own is refused: reading address 0 would end the run."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from tests.support.fake_arena import FakeArenaDevice, take_for_gpu
from tests.support.wrapped import freed, wrapped
from ttrace.adapters.registry import find_adapter
from ttrace.capture.items import OwnTensor, Sheets
from ttrace.core.ids import TensorId
from ttrace.core.record import Record
from ttrace.trace.dtypes import dtype_name
from ttrace.trace.fingerprint import FingerprintPayload

SUMS = 16
MAKERS = [wrapped, freed]


def record_of(tensor: torch.Tensor) -> Record:
    return Record(
        id=TensorId.parse("step0/a:param.weight"),
        rank=0,
        sequence=0,
        dtype=dtype_name(tensor.dtype),
        shape=tuple(tensor.shape),
    )


@pytest.mark.parametrize("is_on_device", [False, True])
@pytest.mark.parametrize("make", MAKERS)
def test_it_has_no_fingerprint(
    make: Callable[..., torch.Tensor], is_on_device: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensor, payload = make(64, 64), FingerprintPayload(SUMS)
    assert tensor.data_ptr() == 0
    if is_on_device:
        take_for_gpu(monkeypatch, FakeArenaDevice())
    with pytest.raises(ValueError, match="no memory of its own"):
        payload.encode(record_of(tensor), tensor)


@pytest.mark.parametrize("shape", [(64, 64), (3,)])
@pytest.mark.parametrize("make", [*MAKERS, torch.ones])
def test_it_is_on_no_sheet(
    make: Callable[..., torch.Tensor], shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    take_for_gpu(monkeypatch, FakeArenaDevice())
    sheets = Sheets(FingerprintPayload(SUMS), find_adapter(nn.Linear(2, 2)), 0, ())
    together, alone = sheets.sorted_out([OwnTensor("a", "weight", make(*shape), None)])
    assert bool(together) == (make is torch.ones)
    assert len(alone) == (make is not torch.ones)


def test_one_without_elements_needs_none() -> None:
    empty = torch.empty(0, 64)
    assert empty.data_ptr() == 0
    _, later = FingerprintPayload(SUMS).encode(record_of(empty), empty)
    assert later().nbytes
