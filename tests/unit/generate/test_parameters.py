"""What a script gets: parameters of sensible size, a random state untouched, and clear refusals."""

import math

import pytest
import torch
from torch import nn

import ttrace
from ttrace.core.layout import Layout
from ttrace.errors import UsageError
from ttrace.generate.parameters import Spread, spread_of


class GatedNorm(nn.Module):
    """Not a class of torch: it is known by its name."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(size))
        self.bias = nn.Parameter(torch.zeros(size))


class Experts(nn.Module):
    """A stack of matrices in one parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.w1 = nn.Parameter(torch.zeros(4, 96, 64))


class Model(nn.Module):
    """One of each kind."""

    def __init__(self, *, tied: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(500, 64)
        self.norm = nn.LayerNorm(64)
        self.gated = GatedNorm(64)
        self.linear = nn.Linear(64, 300)
        self.convolution = nn.Conv2d(16, 64, kernel_size=3)
        self.experts = Experts()
        self.head = nn.Linear(64, 500, bias=False)
        if tied:
            self.head.weight = self.embedding.weight


def generated(model: nn.Module, *, seed: int = 0) -> dict[str, torch.Tensor]:
    ttrace.generate_parameters(model, seed=seed)
    return {name: value.detach().clone() for name, value in model.named_parameters()}


@pytest.mark.parametrize(
    ("name", "mean", "std"),
    [
        ("embedding.weight", 0, 1),
        ("norm.weight", 1, 0.1),
        ("norm.bias", 0, 0.02),
        ("gated.weight", 1, 0.1),
        ("gated.bias", 0, 0.02),
        ("linear.weight", 0, 1 / math.sqrt(3 * 64)),
        ("linear.bias", 0, 0.02),
        ("convolution.weight", 0, 1 / math.sqrt(3 * 16 * 9)),
        ("experts.w1", 0, 1 / math.sqrt(3 * 64)),
    ],
)
def test_each_parameter_has_the_scale_of_its_module(name: str, mean: float, std: float) -> None:
    found = generated(Model())[name]
    n = found.numel()
    assert abs(found.mean() - mean) < 4 * std / math.sqrt(n)
    assert found.std() == pytest.approx(std, rel=4 * math.sqrt(0.2 / n))


@pytest.mark.parametrize(
    "module", [nn.Linear(48, 4000), nn.Conv1d(8, 4000, 5), nn.Embedding(4000, 32)]
)
def test_scale_is_what_the_module_gives_itself(module: nn.Module) -> None:
    weight = module.get_parameter("weight")
    own = weight.std().item()
    assert spread_of(type(module), "weight", weight.shape).std == pytest.approx(own, rel=0.02)


@pytest.mark.parametrize(
    ("kind", "name", "shape", "expected"),
    [
        (nn.LayerNorm, "weight", (4, 8), Spread(mean=1, std=0.1)),
        (nn.BatchNorm2d, "weight", (8,), Spread(mean=1, std=0.1)),
        (type("LlamaRMSNorm", (nn.Module,), {}), "weight", (8,), Spread(mean=1, std=0.1)),
        (type("Mine", (nn.RMSNorm,), {}), "weight", (8,), Spread(mean=1, std=0.1)),
        (type("NormHead", (nn.Module,), {}), "weight", (8, 3), Spread(mean=0, std=1 / 3)),
        (type("VocabParallelEmbedding", (nn.Module,), {}), "weight", (8, 3), Spread(mean=0, std=1)),
        (nn.Module, "temperature", (), Spread(mean=0, std=0.02)),
        (nn.Module, "gamma", (8,), Spread(mean=1, std=0.1)),
        (nn.Linear, "weight", (8, 0), Spread(mean=0, std=1 / math.sqrt(3))),
    ],
)
def test_names_of_classes_tell_their_kind(
    kind: type, name: str, shape: tuple[int, ...], expected: Spread
) -> None:
    assert spread_of(kind, name, shape) == expected


def test_same_seed_gives_the_same_model_and_another_seed_another() -> None:
    first, again, other = (generated(Model(), seed=seed) for seed in (3, 3, 4))
    for name, value in first.items():
        assert torch.equal(value, again[name])
        assert not (value == other[name]).any()


def test_parameters_differ_from_each_other() -> None:
    found = generated(nn.Sequential(*(nn.Linear(8, 8) for _ in range(3))))
    assert not (found["0.weight"] == found["1.weight"]).any()


def test_a_tied_weight_is_made_once_at_the_narrowest_scale() -> None:
    model = Model(tied=True)
    found = generated(model)
    assert model.head.weight is model.embedding.weight
    assert found["embedding.weight"].std() == pytest.approx(1 / math.sqrt(3 * 64), rel=0.02)


def test_wrappers_do_not_change_the_values() -> None:
    class Wrapper(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self._checkpoint_wrapped_module = inner

    plain, wrapped = Model(), Model()
    ttrace.generate_parameters(plain)
    ttrace.generate_parameters(Wrapper(wrapped))
    for name, value in plain.named_parameters():
        assert torch.equal(value, wrapped.get_parameter(name))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_dtype_only_rounds(dtype: torch.dtype) -> None:
    whole = generated(Model())
    for name, value in generated(Model().to(dtype)).items():
        assert torch.equal(value, whole[name].to(dtype))


def test_the_random_state_is_untouched() -> None:
    model, state = Model(), torch.get_rng_state()
    ttrace.generate_parameters(model)
    ttrace.dropout_mask((8, 8), "dropout", p=0.5)
    assert torch.equal(torch.get_rng_state(), state)


def test_parameters_stay_trainable_leaves() -> None:
    linear = nn.Linear(4, 4)
    ttrace.generate_parameters(linear)
    linear(torch.ones(2, 4)).sum().backward()
    assert linear.weight.is_leaf
    assert linear.weight.grad is not None


def test_every_parameter_that_cannot_be_made_is_named_and_nothing_changes() -> None:
    model = Model()
    before = model.linear.weight.detach().clone()
    model.norm.to("meta")
    model.gated.weight = nn.Parameter(torch.zeros(64, dtype=torch.int8), requires_grad=False)
    with pytest.raises(UsageError) as refused:
        ttrace.generate_parameters(model)
    text = str(refused.value)
    assert "norm:param.weight: is on the meta device; call model.to_empty" in text
    assert "norm:param.bias: is on the meta device" in text
    assert "gated:param.weight: is of torch.int8" in text
    assert torch.equal(model.linear.weight, before)


@pytest.mark.parametrize("model", [nn.ReLU(), [], ["no module"]])
def test_what_has_no_parameters_is_refused(model: nn.Module) -> None:
    with pytest.raises(UsageError, match=r"no parameters|needs the model"):
        ttrace.generate_parameters(model)


def test_tensors_of_a_layout_are_parts_of_the_whole() -> None:
    whole = ttrace.generate_tensor((8, 6), "inputs", seed=1, dtype=torch.bfloat16)
    mine = Layout.full((8, 6)).shard(0, 1, 4)
    part = ttrace.generate_tensor(mine, "inputs", seed=1, dtype=torch.bfloat16)
    assert torch.equal(part, whole[2:4])
    kept = ttrace.dropout_mask((8, 6), "dropout", p=0.5, seed=1)
    assert torch.equal(ttrace.dropout_mask(mine, "dropout", p=0.5, seed=1), kept[2:4])


def test_whole_numbers_are_refused() -> None:
    with pytest.raises(UsageError, match="makes real numbers"):
        ttrace.generate_tensor((2,), "tokens", dtype=torch.int64)
