"""A mistake in one stage of the step is blamed on that stage; every mistake has a correct twin."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

import ttrace
from tests.support.capturing import record
from tests.support.tracing import explain
from ttrace.core.blame import Blame, Phase, Stage
from zoo.trials import blames


class WeightGradient(torch.autograd.Function):
    """A linear with a hand-written backward, as fused kernels have."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, factor: float) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.factor = factor
        return x @ weight.T

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight = ctx.saved_tensors
        return grads[0] @ weight, ctx.factor * (grads[0].T @ x), None


class Fused(nn.Linear):
    factor = 1.0

    def forward(self, x: Tensor) -> Tensor:
        return WeightGradient.apply(x, self.weight, self.factor)


def train(
    folder: Path,
    *,
    noise_seed: int | None = None,
    weight_factor: float = 1.0,
    momentum: float = 0.1,
    max_norm: float = 0.05,
    norm_of: slice = slice(None),
    betas: tuple[float, float] = (0.9, 0.99),
    learning_rate: float = 0.1,
    rescale: Callable[[nn.Module], None] = lambda model: None,
) -> Path:
    torch.manual_seed(0)
    model: Any = nn.Sequential(
        Fused(6, 8, bias=False), nn.BatchNorm1d(8, momentum=momentum), nn.Linear(8, 3)
    )
    model[0].factor = weight_factor
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=betas)

    def step() -> None:
        model(torch.randn(16, 6)).square().mean().backward()
        rescale(model)
        gradients = [parameter.grad for parameter in model.parameters()][norm_of]
        norm = nn.utils.get_total_norm([g for g in gradients if g is not None])
        nn.utils.clip_grads_with_norm_(model.parameters(), max_norm, norm)
        optimizer.step()

    record(folder, model, step, optimizer, noise_seed=noise_seed)
    return folder


def one_gradient_twice(model: Any) -> None:
    model[2].weight.grad *= 2


@pytest.fixture(scope="module")
def references(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("reference")
    return train(folder / "plain"), train(folder / "noisy", noise_seed=1)


@pytest.mark.parametrize(
    ("mistake", "blame"),
    [
        ({"weight_factor": 2.0}, Blame.of("0", phase=Phase.WEIGHT_GRADIENT)),
        ({"rescale": one_gradient_twice}, Blame.of("2", phase=Phase.GRADIENT_REDUCTION)),
        ({"norm_of": slice(1)}, Blame.at(Stage.GRADIENT_CLIPPING, Phase.GRADIENT_NORM)),
        ({"max_norm": 0.06}, Blame.at(Stage.GRADIENT_CLIPPING, Phase.CLIP)),
        # Adam corrects its first step for the betas: no parameter shows these
        ({"betas": (0.8, 0.99)}, Blame.at(Stage.OPTIMIZER_STEP, Phase.STATE)),
        ({"betas": (0.9, 0.98)}, Blame.at(Stage.OPTIMIZER_STEP, Phase.STATE)),
        ({"learning_rate": 0.11}, Blame.at(Stage.OPTIMIZER_STEP, Phase.UPDATE)),
        ({"momentum": 0.2}, Blame.of("1", phase=Phase.BUFFER)),
    ],
)
def test_the_stage_of_a_mistake_is_named(
    mistake: dict[str, Any],
    blame: Blame,
    references: tuple[Path, Path],
    tmp_path: Path,
) -> None:
    plain, noisy = references
    result = ttrace.check(plain, train(tmp_path / "candidate", **mistake), perturbed=[noisy])
    assert result.exit_code == 1
    assert blames(result) == (blame,), explain(result)


def test_the_twin_of_all_passes(references: tuple[Path, Path], tmp_path: Path) -> None:
    plain, noisy = references
    result = ttrace.check(plain, train(tmp_path / "candidate"), perturbed=[noisy])
    assert result.exit_code == 0, explain(result)
    assert {"buffer", "clipped_grad", "optimizer"} <= {r.id.kind.value for r in result.tensors}


@pytest.mark.parametrize("clips", ["reference", "candidate"])
def test_clipping_on_one_side_only_is_named(clips: str, tmp_path: Path) -> None:
    def trace(name: str, noise_seed: int | None = None) -> Path:
        torch.manual_seed(0)
        model = nn.Linear(4, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step() -> None:
            model(torch.randn(8, 4)).square().mean().backward()
            if clips in name:
                clip_grad_norm_(model.parameters(), 0.01)
            optimizer.step()

        record(tmp_path / name, model, step, optimizer, noise_seed=noise_seed)
        return tmp_path / name

    result = ttrace.check(
        trace("reference"), trace("candidate"), perturbed=[trace("noisy reference", noise_seed=1)]
    )
    stages = [culprit.blame.stage for culprit in result.culprits]
    assert stages == [Stage.GRADIENT_CLIPPING], explain(result)
