"""One process that rounds as several ranks do."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import ttrace
from ttrace.capture.rounding import split_linears
from ttrace.capture.settings import Settings
from ttrace.errors import UsageError


def linear(in_features: int, out_features: int, dtype: torch.dtype) -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(in_features, out_features, dtype=dtype)


def forward_and_gradients(layer: nn.Linear, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    x = x.clone().requires_grad_()
    y = layer(x)
    y.backward(torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view_as(y))
    assert x.grad is not None
    assert layer.weight.grad is not None
    return y.detach(), x.grad, layer.weight.grad


@pytest.mark.parametrize("ways", [1, 2, 4])
def test_parts_add_up_to_the_whole(ways: int) -> None:
    x = torch.randn(3, 5, 8, dtype=torch.float64)
    whole = forward_and_gradients(linear(8, 12, torch.float64), x)
    layer = linear(8, 12, torch.float64)
    split_linears(layer, ways)
    for expected, found in zip(whole, forward_and_gradients(layer, x), strict=True):
        torch.testing.assert_close(found, expected)


def test_rounds_every_part_as_a_rank_does() -> None:
    x, layer = torch.randn(7, 64).bfloat16(), linear(64, 64, torch.bfloat16)
    parts = zip(x.chunk(4, dim=1), layer.weight.chunk(4, dim=1), strict=True)
    one, *others = [part @ rows.T for part, rows in parts]
    expected = sum(others, one) + layer.bias
    whole = layer(x)
    split_linears(layer, 4)
    assert torch.equal(layer(x), expected)
    assert not torch.equal(whole, expected)


class Doubled(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


def test_leaves_alone_what_does_not_divide_or_has_a_forward_of_its_own() -> None:
    model = nn.Sequential(linear(8, 8, torch.float32), linear(8, 3, torch.float32), Doubled(4, 4))
    split_linears([model], 4)
    assert ["forward" in vars(layer) for layer in model] == [True, False, False]


@pytest.mark.parametrize("ways", [0, 3])
def test_nothing_to_split_is_an_error(ways: int) -> None:
    with pytest.raises(UsageError, match="split"):
        split_linears(linear(8, 8, torch.float32), ways)


def test_attach_splits_where_a_run_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(folder=tmp_path, noise_seed=1, split=2)
    for name, value in settings.to_environment().items():
        monkeypatch.setenv(name, value)
    model = nn.Sequential(linear(8, 8, torch.float32))
    ttrace.attach(model)
    assert "forward" in vars(model[0])
