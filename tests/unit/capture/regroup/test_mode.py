"""Sums in other groups: the same numbers but for rounding, whatever the operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._dynamo.eval_frame import OptimizedModule
from torch._subclasses.fake_tensor import FakeTensorMode

from ttrace.adapters.base import Adapter
from ttrace.capture.noise import Noise
from ttrace.capture.regroup import Regrouping

F64 = torch.float64


def regrouping_of(seed: int) -> Regrouping:
    return Regrouping(Noise(seed, Adapter(nn.Identity())))


def draw(*shape: int, seed: int = 0, dtype: torch.dtype = F64) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def batch_norm(train: bool) -> nn.BatchNorm2d:
    layer = nn.BatchNorm2d(4, dtype=F64).train(train)
    layer.running_var.uniform_(0.5, 2)  # type: ignore[union-attr]
    return layer


def ids(count: int, among: int = 7) -> Tensor:
    return torch.randint(0, among, (count,), generator=torch.Generator().manual_seed(3))


IMAGES = (6, 4, 5, 5)
# The operator, and a function of one tensor that uses it in its forward or backward pass.
PROGRAMS: dict[str, tuple[tuple[int, ...], Callable[[Tensor], Tensor]]] = {
    "aten.mm": ((9, 600), lambda x: x @ draw(600, 3)),
    "aten.bmm": ((2, 9, 8), lambda x: x @ draw(2, 8, 3)),
    "aten.mv": ((9, 8), lambda x: x @ draw(8)),
    "aten.addmm": ((9, 8), lambda x: F.linear(x, draw(5, 8), draw(5))),
    "aten.baddbmm": ((2, 9, 8), lambda x: torch.baddbmm(draw(2, 9, 3), x, draw(2, 8, 3))),
    "aten.addmv": ((9, 8), lambda x: torch.addmv(draw(9), x, draw(8), beta=0.5, alpha=2)),
    "aten.sum": ((700, 3), lambda x: x.sum(0)),
    "aten.mean": ((3, 700), lambda x: x.mean(-1, keepdim=True)),
    "aten.linalg_vector_norm": ((700,), torch.linalg.vector_norm),
    "aten.nll_loss_forward": (
        (600, 7),
        lambda x: F.cross_entropy(x, ids(600), ignore_index=2, label_smoothing=0.1),
    ),
    "aten.index_add": ((9, 3), lambda x: draw(7, 3).index_add(0, ids(9), x, alpha=2)),
    "aten.index_add_": ((9, 3), lambda x: draw(7, 3).index_add_(0, ids(9), x)),
    "aten.scatter_add": ((9,), lambda x: draw(7).scatter_add(0, ids(9), x)),
    "aten.scatter_add_": ((9,), lambda x: draw(7).scatter_add_(0, ids(9), x)),
    "aten.index_put": ((7, 3), lambda x: draw(9, 3).index_put((ids(7, 9),), x, accumulate=True)),
    "aten.index_put_": ((7, 3), lambda x: draw(9, 3).index_put_((ids(7, 9),), x, accumulate=True)),
    "aten.native_layer_norm_backward": (
        (2, 3, 4, 8),
        lambda x: nn.LayerNorm((4, 8), dtype=F64)(x),
    ),
    "aten.native_group_norm_backward": (IMAGES, lambda x: nn.GroupNorm(2, 4, dtype=F64)(x)),
    "aten.native_batch_norm_backward": (IMAGES, lambda x: batch_norm(False)(x)),
    "aten.native_batch_norm": (IMAGES, lambda x: batch_norm(True)(x)),
    "aten.convolution": (IMAGES, lambda x: F.conv2d(x, draw(3, 4, 3, 3), draw(3), padding=1)),
    "aten.convolution_backward": (IMAGES, lambda x: F.conv_transpose2d(x, draw(4, 3, 3, 3))),
    "aten.embedding_dense_backward": (
        (7, 3),
        lambda x: F.embedding(ids(30).view(5, 6), x, padding_idx=1),
    ),
}


def results(program: Callable[[Tensor], Tensor], shape: tuple[int, ...]) -> list[Tensor]:
    """The output and the gradient of the input."""
    torch.manual_seed(0)
    x = draw(*shape, seed=1).requires_grad_()
    output = program(x)
    output.backward(draw(*output.shape, seed=2))
    assert x.grad is not None
    return [output.detach(), x.grad]


@pytest.mark.parametrize("operator", PROGRAMS)
def test_the_parts_of_a_sum_add_up_to_it(operator: str) -> None:
    shape, program = PROGRAMS[operator]
    expected = results(program, shape)
    with regrouping_of(1) as regrouping:
        found = results(program, shape)
    assert regrouping.regrouped[operator] > 0
    assert not regrouping.faults
    for value, other in zip(found, expected, strict=True):
        torch.testing.assert_close(value, other, rtol=1e-12, atol=1e-12)


def gradients(layer: nn.Module, x: Tensor) -> list[Tensor]:
    layer.zero_grad()
    x = x.detach().requires_grad_()
    output = layer(x)
    first = output[0] if isinstance(output, tuple) else output
    first.backward(draw(*first.shape, seed=2, dtype=torch.float32).to(x.dtype))
    assert x.grad is not None
    return [x.grad, *(p.grad.clone() for p in layer.parameters() if p.grad is not None)]


LAYERS: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "layer norm": (nn.LayerNorm(8), (300, 8)),
    "group norm": (nn.GroupNorm(2, 4), IMAGES),
    "batch norm, frozen": (batch_norm(False).float(), IMAGES),
    "batch norm": (batch_norm(True).float(), IMAGES),
    "convolution": (nn.Conv2d(4, 6, 3, groups=2), IMAGES),
    "lstm": (nn.LSTM(4, 5, num_layers=2, bidirectional=True, batch_first=True), (6, 3, 4)),
    "gru": (nn.GRU(4, 5), (3, 6, 4)),
    "linear": (nn.Linear(8, 5), (2, 300, 8)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_gradients_of_parameters_are_the_same_but_for_rounding(name: str) -> None:
    layer, shape = LAYERS[name]
    x = draw(*shape, dtype=torch.float32)
    expected = gradients(layer, x)
    with regrouping_of(1) as regrouping:
        found = gradients(layer, x)
    assert regrouping.regrouped
    assert not regrouping.faults
    for value, other in zip(found, expected, strict=True):
        torch.testing.assert_close(value, other, rtol=1e-4, atol=1e-5)


def test_batch_norm_in_training_shows_what_its_sums_do() -> None:
    """All of it: a synchronised one adds its sums otherwise, and is nearer to the exact result."""
    x = draw(8, 4, 64, 64, dtype=torch.float32)

    def found(dtype: torch.dtype) -> tuple[list[Tensor], Tensor]:
        layer = nn.BatchNorm2d(4, dtype=dtype)
        results = [value.double() for value in gradients(layer, x.to(dtype))]
        assert layer.running_var is not None
        return results, layer.running_var.clone()

    (exact, _), (plain, running) = found(F64), found(torch.float32)
    with regrouping_of(1):
        other, running_too = found(torch.float32)
    assert torch.equal(running, running_too)
    for expected, value, parted in zip(exact, plain, other, strict=True):
        assert (value - parted).norm() > 0.3 * (value - expected).norm()
        torch.testing.assert_close(parted, expected, rtol=1e-4, atol=1e-3)


def test_a_fused_recurrent_layer_is_made_in_parts() -> None:
    layer, x = nn.LSTM(4, 5), draw(3, 6, 4, dtype=torch.float32)
    if not torch.backends.mkldnn.is_available():
        pytest.skip("oneDNN is not part of this torch")
    before = torch.backends.mkldnn.set_flags(True)
    try:
        expected = gradients(layer, x)
        with regrouping_of(1) as regrouping:
            found = gradients(layer, x)
    finally:
        torch.backends.mkldnn.set_flags(before[0])
    for value, other in zip(found, expected, strict=True):
        torch.testing.assert_close(value, other, rtol=1e-4, atol=1e-5)
    assert regrouping.regrouped["aten.mkldnn_rnn_layer_backward"] == 1
    assert not regrouping.faults


def test_a_long_sum_shows_what_its_order_does() -> None:
    """A norm's weight gradient over 16,384 rows: far beyond one eps, and no further than it is."""
    layer, x = nn.LayerNorm(32), draw(16384, 32, dtype=torch.float32)
    exact = gradients(nn.LayerNorm(32, dtype=F64), x.double())[1]
    plain = gradients(layer, x)[1].double()
    with regrouping_of(1):
        other = gradients(layer, x)[1].double()
    assert (plain - other).norm() > 0.5 * (plain - exact).norm()
    assert (other - exact).norm() < (plain - exact).norm()


def test_one_seed_is_one_grouping() -> None:
    x = draw(40, 3000, dtype=torch.float32)

    def product(seed: int) -> Tensor:
        with regrouping_of(seed):
            return x @ x.T

    assert torch.equal(product(1), product(1))
    assert not torch.equal(product(1), product(2))


@pytest.mark.parametrize("b", [draw(4, 3), draw(3)])
def test_shapes_that_do_not_fit_are_refused_as_before(b: Tensor) -> None:
    with regrouping_of(1), pytest.raises(RuntimeError):
        draw(5, 2) @ b


def test_whole_numbers_are_added_as_they_are() -> None:
    with regrouping_of(1) as regrouping:
        assert int(torch.arange(1000).sum()) == 499_500
    assert not regrouping.regrouped


def test_compiled_modules_are_named() -> None:
    plain, compiled = nn.Linear(2, 2), nn.Linear(2, 2)
    compiled.compile()
    whole = OptimizedModule(plain, cast(Any, lambda function: function))  # what torch.compile makes
    regrouping = regrouping_of(1)
    assert regrouping.notes([plain]) == []
    for root in (nn.Sequential(plain, compiled), whole):
        (note,) = regrouping.notes([root])
        assert "compiled modules stay in their order" in note


def test_a_fault_leaves_the_operator_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    from ttrace.capture.regroup import mode

    def fails(*_: object) -> None:
        raise ValueError("boom")

    monkeypatch.setitem(mode._RULES, torch.ops.aten.mm, fails)
    with regrouping_of(1) as regrouping:
        found = draw(3, 4) @ draw(4, 5)
    assert torch.equal(found, draw(3, 4) @ draw(4, 5))
    assert regrouping.notes()[0] == "a sum was left in its order (1 times): aten.mm.default: boom"


@pytest.mark.parametrize("is_updating", [False, True])
def test_what_an_optimizer_multiplies_in_low_precision_is_noisy(is_updating: bool) -> None:
    """A single term is not regrouped, and has one unit of noise in an optimizer's step."""
    x = draw(40, 1, dtype=torch.float32).bfloat16()
    with regrouping_of(1) as regrouping:
        regrouping.is_updating = is_updating
        found = x @ x.T
        exact = x.float() @ x.float().T
    expected = x @ x.T
    assert torch.equal(found, expected) is not is_updating
    assert (found - expected).abs().max() <= 0.01 * expected.abs().max()
    assert torch.equal(exact, x.float() @ x.float().T)


@pytest.mark.parametrize("shapes", [(), (torch.Size([5, 5]),)], ids=["others", "its own"])
def test_gradients_that_backward_collects_are_noisy(shapes: tuple[torch.Size, ...]) -> None:
    """A weight that is used three times; quarters in fp32, so that no order matters."""
    weight = torch.arange(25.0).view(5, 5).requires_grad_()
    x = torch.arange(15.0).view(3, 5) / 4

    def gradient() -> Tensor:
        weight.grad = None
        torch.stack([(row * weight).sum() for row in x]).sum().backward()
        assert weight.grad is not None
        return weight.grad

    expected = gradient()
    with Regrouping(Noise(1, Adapter(nn.Identity())), shapes):
        found = gradient()
        outside = weight.detach() + weight.detach()
    assert torch.equal(found, expected) is not bool(shapes)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
    assert torch.equal(outside, 2 * weight.detach())


def test_nothing_is_left_over_of_sums_of_nothing() -> None:
    with regrouping_of(1) as regrouping:
        found = [torch.zeros(0, 3).sum(0), torch.zeros(2, 0) @ torch.zeros(0, 3)]
        out = torch.empty(2, 2)
        torch.mm(torch.ones(2, 3), torch.ones(3, 2), out=out)
    assert all(not value.any() for value in found)
    assert bool((out == 3).all())
    assert not regrouping.faults


class TestWeights:
    """A weight has noise where an operator multiplies by it, and nowhere else."""

    @pytest.fixture
    def linear(self) -> nn.Linear:
        torch.manual_seed(0)
        return nn.Linear(1, 4)  # a single term: nothing is regrouped

    def test_an_operator_sees_it_with_noise(self, linear: nn.Linear) -> None:
        x = torch.rand(64, 1)
        with regrouping_of(1):
            found = linear(x)
        assert not torch.equal(found, linear(x))
        torch.testing.assert_close(found, linear(x), rtol=1e-6, atol=1e-6)

    def test_the_parameter_stays_exact_and_keeps_its_version(self, linear: nn.Linear) -> None:
        before, version = linear.weight.detach().clone(), linear.weight._version
        with regrouping_of(1):
            linear(torch.rand(64, 1)).sum().backward()
            linear.weight.data.mul_(2)
        assert torch.equal(linear.weight, 2 * before)
        assert linear.weight._version == version

    def test_what_is_written_to_is_not_exchanged(self) -> None:
        table = nn.Parameter(torch.rand(4, 4))
        with regrouping_of(1), torch.no_grad():
            expected = table.index_add(0, torch.tensor([0, 1]), torch.zeros(2, 4))
            table.index_add_(0, torch.tensor([0, 1]), torch.ones(2, 4))
        assert not torch.equal(table, expected)

    def test_an_optimizer_sees_it_as_it_is(self, linear: nn.Linear) -> None:
        with regrouping_of(1) as regrouping, torch.no_grad():
            regrouping.is_updating = True
            found = linear.weight @ torch.ones(1, 1)
        assert torch.equal(found, linear.weight)

    def test_a_program_that_updates_between_two_backward_passes_lives(
        self, linear: nn.Linear
    ) -> None:
        """Autograd refuses a backward whose saved tensors were changed in place."""
        other = nn.Linear(4, 1)
        with regrouping_of(1):
            hidden = linear(torch.rand(8, 1))
            other(hidden.detach()).sum().backward()
            torch.optim.SGD(other.parameters(), lr=0.1).step()
            hidden.sum().backward()
        assert linear.weight.grad is not None


def test_tensors_without_values_are_left_alone() -> None:
    with FakeTensorMode() as fake:
        x, weight = fake.from_tensor(draw(9, 600)), fake.from_tensor(draw(600, 3))
        with regrouping_of(0) as regrouping:
            assert (x @ weight).shape == (9, 3)
    assert not regrouping.regrouped
    assert not regrouping.faults
