"""Modes that see every operator: functions that take functions run as they are."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import flex_attention

from ttrace.adapters.base import Adapter
from ttrace.capture.guard import Guard
from ttrace.capture.noise import Noise
from ttrace.capture.operator_mode import OperatorMode
from ttrace.capture.regroup import CodesWatch, Regrouping
from ttrace.capture.unquantised import HighPrecision, Regions

X = torch.randn(1, 2, 16, 16, generator=torch.Generator().manual_seed(1))
MODES: dict[str, Callable[[], OperatorMode]] = {
    "with noise": lambda: Regrouping(Noise(1, Adapter(nn.Identity()))),
    "watched": lambda: CodesWatch(lambda: None),
    "in high precision": lambda: HighPrecision(Regions(Adapter(nn.Identity()), "*", Guard())),
}


def chosen(x: Tensor) -> Tensor:
    found: Tensor = torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))
    return found


def attention(x: Tensor) -> Tensor:
    found = flex_attention(x, x, x, score_mod=lambda score, *_: score * 2)
    assert isinstance(found, Tensor)
    return found


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("work", [chosen, attention])
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_a_function_that_takes_functions_runs(work: Callable[[Tensor], Tensor], mode: str) -> None:
    with MODES[mode]():
        found = work(X)
    assert found.equal(work(X))
