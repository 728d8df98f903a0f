"""High precision: modules that are asked about compute as if they quantised nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from ttrace.adapters.base import Adapter
from ttrace.capture.guard import Guard
from ttrace.capture.unquantised import HighPrecision, Regions
from zoo.lowprecision.linear import Product, QuantisedLinear, emulated, scaled
from zoo.lowprecision.schemes import (
    STOCHASTIC_NV,
    Blockwise,
    Mx,
    Nv,
    Operand,
    Quantised,
    Rowwise,
    Scheme,
)

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
SCHEMES: dict[str, Scheme] = {
    "rowwise": Rowwise(),
    "blockwise": Blockwise(),
    "mxfp8": Mx(),
    "nvfp4": Nv(),
    "stochastic": STOCHASTIC_NV,
}
EXACT = {"rowwise", "mxfp8"}  # their scales are powers of two
FP32 = 1e-5  # a few roundings of fp32 in scales and sums


class PowersOfTwo:
    """One scale, so that torch._scaled_mm can be asked."""

    def quantise(self, x: Tensor, operand: Operand, split: int | None) -> Quantised:
        scale = torch.exp2(torch.ceil(torch.log2(x.abs().amax().float() / 448))).reshape(1, 1)
        codes = (x.float() / scale).clamp(-448.0, 448.0).to(E4M3)
        return Quantised(codes=codes, scales=scale, block=(x.shape[0], x.shape[1]))


def model_of(scheme: Scheme, multiply: Any = emulated) -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(32, 32) for _ in range(3)))
    for number in (0, 2):
        made = QuantisedLinear.of(model[number], dict.fromkeys(Product, scheme))  # type: ignore[arg-type]
        made.multiply = multiply
        model[number] = made
    return model


def plain(model: nn.Sequential, x: Tensor, *, first: int = 0) -> Tensor:
    """What modules compute that quantise nothing."""
    for module in [*model][first:]:
        assert isinstance(module, nn.Linear)
        x = F.linear(x, module.weight, module.bias)
    return x


def results(model: nn.Sequential, compute: Callable[[Tensor], Tensor]) -> list[Tensor]:
    """The output and all gradients of one step."""
    model.zero_grad()
    x = torch.randn(32, 32, generator=torch.Generator().manual_seed(1)).requires_grad_()
    y = compute(x)
    y.square().mean().backward()
    assert x.grad is not None
    return [y.detach(), x.grad, *(p.grad for p in model.parameters() if p.grad is not None)]


def watching(model: nn.Module, *patterns: str) -> HighPrecision:
    return HighPrecision(Regions(Adapter(model), patterns, Guard()))


def within(mode: HighPrecision, model: nn.Sequential) -> list[Tensor]:
    with mode:
        return results(model, model)


@pytest.mark.parametrize("name", SCHEMES)
class TestAllModules:
    def test_compute_what_an_unquantised_model_does(self, name: str) -> None:
        model = model_of(SCHEMES[name])
        found = within(mode := watching(model, "*"), model)
        for got, wanted in zip(found, results(model, lambda x: plain(model, x)), strict=True):
            if name in EXACT:
                torch.testing.assert_close(got, wanted, rtol=1e-6, atol=1e-8)
            else:
                assert (got - wanted).norm() <= FP32 * wanted.norm()
        assert [each.module for each in mode.undone()] == ["0", "2"]
        assert all(each.changed and not each.left for each in mode.undone())

    def test_which_differs_from_what_they_do_alone(self, name: str) -> None:
        model = model_of(SCHEMES[name])
        got, wanted = results(model, model)[0], results(model, lambda x: plain(model, x))[0]
        assert (got - wanted).norm() > 1e3 * FP32 * wanted.norm()


def test_to_the_bit_where_scales_are_powers_of_two() -> None:
    model = model_of(PowersOfTwo())
    x = torch.randn(32, 32)
    with watching(model, "0"):
        found = model[0](x)
    layer = model[0]
    assert isinstance(layer, nn.Linear)
    assert found.equal((x @ layer.weight.T) + layer.bias)
    assert not model[0](x).equal(found)


def test_products_of_codes_are_products_of_values() -> None:
    model = model_of(PowersOfTwo(), scaled)
    quantised, wanted = results(model, model), results(model, lambda x: plain(model, x))
    found = within(mode := watching(model, "*"), model)
    for got, right in zip(found, wanted, strict=True):
        torch.testing.assert_close(got, right, rtol=1e-6, atol=1e-8)
    assert not quantised[0].allclose(wanted[0], rtol=1e-3)
    assert {each.module: each.changed for each in mode.undone()} == {"0": 3, "2": 3}


def test_what_is_composed_inside_of_tensors_is_taken_apart() -> None:
    """Casts come as they were called where autograd is left out, as inside of torchao."""
    model = nn.Sequential(Views())
    x = 300 * torch.randn(8, 8)
    with watching(model, "*") as mode, torch._C._AutoDispatchBelowAutograd():
        found = model(x)
    first, second = x.T.chunk(2)
    assert found.equal(torch.cat([second, first]).reshape(-1, 4).flip(0))
    assert mode.undone()[0].left == ()


class TestOtherModules:
    def test_compute_as_they_did(self) -> None:
        model = model_of(Rowwise())
        found = within(mode := watching(model, "2"), model)
        assert [each.module for each in mode.undone()] == ["2"]
        x = torch.randn(32, 32, generator=torch.Generator().manual_seed(1))
        hidden = model[1](model[0](x)).detach()
        assert found[0].allclose(plain(model, hidden, first=2), rtol=1e-6)
        assert not found[0].equal(plain(model, x))

    def test_in_backward_too(self) -> None:
        model = model_of(Rowwise())
        found = within(watching(model, "2"), model)
        right = results(model, lambda x: plain(model, x))
        both = within(watching(model, "*"), model)
        assert both[1].allclose(right[1], rtol=1e-5, atol=1e-7)
        assert not found[1].allclose(right[1], rtol=1e-3, atol=1e-7)

    def test_none_matches_and_nothing_changes(self) -> None:
        model = model_of(Rowwise())
        found = within(mode := watching(model, "nobody"), model)
        assert all(map(torch.equal, found, results(model, model)))
        assert mode.undone() == ()

    def test_without_quantisation_have_nothing_undone(self) -> None:
        model = model_of(Rowwise())
        assert within(mode := watching(model, "1"), model)
        assert mode.undone() == ()


def test_a_recomputed_module_is_one_of_them_too() -> None:
    model = model_of(PowersOfTwo())

    def recomputed(x: Tensor) -> Tensor:
        for module in model:
            x = checkpoint(module, x, use_reentrant=False)
        return x

    with watching(model, "*"):
        found = results(model, recomputed)
    for got, wanted in zip(found, results(model, lambda x: plain(model, x)), strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-6, atol=1e-8)


class Views(nn.Module):
    """Codes on their way: transposed, cut, copied, joined, saturated, cast again."""

    def forward(self, x: Tensor) -> Tensor:
        codes = x.clamp(-448.0, 448.0).to(E4M3)
        first, second = codes.T.contiguous().chunk(2)
        again = torch.cat([second, first]).to(E5M2)
        into = torch.empty(again.shape, dtype=E5M2)
        into.copy_(again)
        return into.view(-1, 4).flip(0).float()


def test_codes_are_followed_through_views_and_copies() -> None:
    x = 300 * torch.randn(8, 8)
    model = nn.Sequential(Views())
    with watching(model, "*"):
        found = model(x)
    first, second = x.T.chunk(2)
    assert found.equal(torch.cat([second, first]).reshape(-1, 4).flip(0))


class Given(nn.Module):
    """Multiplies by codes that it was given; `writes` over them before."""

    def __init__(self, codes: Tensor, *, writes: bool = False) -> None:
        super().__init__()
        self.codes, self.writes = codes, writes

    def forward(self, x: Tensor) -> Tensor:
        if self.writes:
            self.codes = x.to(E4M3)
            self.codes.fill_(2.0)
        return x * self.codes.float()


class TestWhatCannotBeUndone:
    def test_is_counted_and_runs_as_it_is(self) -> None:
        x, codes = torch.randn(4, 4), torch.randn(4, 4).to(E4M3)
        model = nn.Sequential(Given(codes))
        with watching(model, "*") as mode:
            assert model(x).equal(x * codes.float())
        (found,) = mode.undone()
        assert found.changed == 0
        assert found.left == ("codes whose values before the cast nobody saw",)

    def test_codes_that_were_written_over_are_not_taken_for_others(self) -> None:
        x = torch.randn(4, 4)
        model = nn.Sequential(Given(x, writes=True))
        with watching(model, "*"):
            assert model(x).equal(2 * x)

    def test_a_fault_is_told_and_the_operator_runs_as_it_is(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        model, told = model_of(Rowwise()), []
        mode = HighPrecision(
            Regions(Adapter(model), ["*"], Guard()), lambda *fault: told.append(fault)
        )
        monkeypatch.setattr(mode._values, "values_of", lambda _: 1 / 0)
        found = within(mode, model)
        assert all(map(torch.equal, found, results(model, model)))
        assert isinstance(told[0][1], ZeroDivisionError)


def test_values_are_forgotten_with_their_codes() -> None:
    model = nn.Sequential(Views())
    with watching(model, "*") as mode:
        for _ in range(200):
            model(torch.randn(8, 8))
    assert len(mode._values._kept) < 150
