"""AdamW that holds bf16 parameters by stochastic rounding, and a dynamic scale of the loss.

Enters: gradients. Leaves: parameters; of a step whose gradients overflow on any rank, the same on
all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from zoo.lowprecision.formats import to_bf16_stochastic

_BETAS, _EPS = (0.9, 0.999), 1e-8  # Adam's


def local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


class StochasticAdamW(Optimizer):
    """Moments in fp32. What ranks have alike must be rounded alike, and their parts must not."""

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        *,
        lr: float,
        seed: int,
        rank: int,
        parts: AbstractSet[int],
    ) -> None:
        """`parts` are ids of parameters of which each rank has its own part."""
        super().__init__(parameters, {"lr": lr})
        self.alike = torch.Generator().manual_seed(seed)
        self.of_parts = torch.Generator().manual_seed(seed + 1 + rank)
        self._parts = parts

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                assert parameter.grad is not None
                if not state:
                    state["step"] = 0
                    for name in ("exp_avg", "exp_avg_sq"):
                        state[name] = torch.zeros_like(parameter, dtype=torch.float32)
                self._update(parameter, parameter.grad, state, group["lr"])

    def _update(
        self, parameter: Tensor, gradient: Tensor, state: dict[str, Any], lr: float
    ) -> None:
        state["step"] += 1
        held, grad = local(parameter), local(gradient).float()
        first, second = local(state["exp_avg"]), local(state["exp_avg_sq"])
        first.lerp_(grad, 1 - _BETAS[0])
        second.mul_(_BETAS[1]).addcmul_(grad, grad, value=1 - _BETAS[1])
        corrected = second.div(1 - _BETAS[1] ** state["step"]).sqrt_().add_(_EPS)
        moved = first / (1 - _BETAS[0] ** state["step"]) / corrected
        generator = self.of_parts if id(parameter) in self._parts else self.alike
        held.copy_(to_bf16_stochastic(held.float() - lr * moved, generator))


class LossScale:
    """Halved many times at once where gradients overflow, and the step is left out."""

    def __init__(self, first: float, backoff: float) -> None:
        self.value, self.backoff = first, backoff

    def step(self, optimizer: Optimizer, model: nn.Module) -> None:
        gradients = []
        for parameter in model.parameters():
            assert parameter.grad is not None
            gradients.append(local(parameter.grad))
            if self.is_undone(parameter):
                gradients[-1] /= self.value
        if self.overflows(gradients):
            self.value *= self.backoff
        else:
            optimizer.step()

    def is_undone(self, parameter: nn.Parameter) -> bool:
        """Whether its gradient is divided again."""
        return True

    def overflows(self, gradients: Iterable[Tensor]) -> bool:
        """On any rank."""
        found = torch.tensor(float(not all(g.isfinite().all() for g in gradients)))
        dist.all_reduce(found, dist.ReduceOp.MAX)
        return bool(found)
