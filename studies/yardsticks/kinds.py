"""The yardsticks: each makes the gradients of a reference once more, off by what may be rounding.

Enters: a subject and a noise seed. Leaves: gradients, whose distance from the reference's is the
yardstick. It must not know what a correct candidate does.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from studies.yardsticks.subjects import Batch, Gradients, Subject, gradients, weighted
from ttrace.adapters.base import Adapter
from ttrace.capture.noise import Noise
from ttrace.capture.regroup import Regrouping


@dataclass(frozen=True, slots=True, kw_only=True)
class Yardstick:
    """`splits_batch`: it means something only where samples are independent."""

    name: str
    what: str
    samples: str  # what it asks of them
    help: str  # what it asks of the user
    measure: Callable[[Subject, int], Gradients]
    splits_batch: bool = False


@contextmanager
def noisy(model: nn.Module, noise: Noise, *, weights: bool = True) -> Iterator[None]:
    """While open, outputs of modules, their gradients, and weights are off by a last place."""

    def shifted(value: Any, name: str) -> Any:
        if isinstance(value, tuple):
            return tuple(shifted(each, f"{name}.{number}") for number, each in enumerate(value))
        result = noise.on(value, name)
        if result.requires_grad:
            result.register_hook(lambda grad: noise.on(grad, f"gradient of {name}"))
        return result

    def hook(name: str) -> Callable[..., Any]:
        return lambda _module, _inputs, output: shifted(output, f"output of {name}")

    leaves = [(name, each) for name, each in model.named_modules() if not list(each.children())]
    handles = [each.register_forward_hook(hook(name)) for name, each in leaves]
    exact = {parameter: parameter.detach().clone() for parameter in model.parameters()}
    with torch.no_grad():
        for name, parameter in model.named_parameters() if weights else ():
            parameter.copy_(noise.on_weight(parameter, name))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
        with torch.no_grad():
            for parameter, values in exact.items():
                parameter.copy_(values)


def _noise(subject: Subject, seed: int, batch: Batch | None = None) -> Gradients:
    with noisy(subject.model, Noise(seed, Adapter(subject.model))):
        return gradients(subject.model, batch or subject.batch)


def _permuted(subject: Subject, seed: int) -> Gradients:
    x, y = subject.batch
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    return _noise(subject, seed, (x[order], y[order]))


def _halves(subject: Subject, seed: int) -> Gradients:
    x, y = subject.batch
    cut = len(x) // 4  # chosen: no layout of equal parts adds these two
    found = [_noise(subject, seed, (x[:cut], y[:cut])), _noise(subject, -seed, (x[cut:], y[cut:]))]
    return weighted(found, [cut / len(x), 1 - cut / len(x)])


def by_length(found: Gradients, rows: int, seed: int) -> Gradients:
    """Every element times 1 + eps sqrt(rows) u, u uniform in [-1, 1]."""
    generator = torch.Generator().manual_seed(seed)

    def grown(grad: Tensor) -> Tensor:
        u = 2 * torch.rand(grad.shape, generator=generator, dtype=torch.float64) - 1
        size = torch.finfo(grad.dtype).eps * math.sqrt(rows)
        return (grad.double() * (1 + size * u)).to(grad.dtype)

    return {name: grown(grad) for name, grad in found.items()}


def _by_length(subject: Subject, seed: int) -> Gradients:
    return by_length(_noise(subject, seed), subject.rows, seed)


class _ExactWeights(Regrouping):
    def weight(self, value: Tensor, key: str) -> Tensor:
        return value


def _regrouped(subject: Subject, seed: int, how: type[Regrouping] = Regrouping) -> Gradients:
    noise = Noise(seed, Adapter(subject.model))
    sums = how(noise, {parameter.shape for parameter in subject.model.parameters()})
    regrouping: AbstractContextManager[Any] = sums  # torch does not annotate its own
    with noisy(subject.model, noise, weights=False), regrouping:
        found = gradients(subject.model, subject.batch)
    assert sums.regrouped, "no sum was regrouped"
    assert not sums.faults, sums.notes()
    return found


def _exact_weights(subject: Subject, seed: int) -> Gradients:
    return _regrouped(subject, seed, _ExactWeights)


def _exact(subject: Subject, _: int) -> Gradients:
    x, y = subject.batch
    wide = copy.deepcopy(subject.model).double()
    return gradients(wide, (x.double() if x.is_floating_point() else x, y))


YARDSTICKS = (
    Yardstick(
        name="noise",
        what="noise of one last place on outputs of modules, their gradients, and fp32 weights "
        "(version 0.1)",
        samples="any",
        help="none",
        measure=_noise,
    ),
    Yardstick(
        name="permuted",
        what="the same, with the samples of the batch in another order",
        samples="no result may depend on their order",
        help="which dim of which inputs has the samples",
        measure=_permuted,
    ),
    Yardstick(
        name="unequal halves",
        what="the same, on a quarter of the batch and on the rest, whose gradients are added",
        samples="independent",
        help="which dim has the samples, and how the loss is averaged",
        measure=_halves,
        splits_batch=True,
    ),
    Yardstick(
        name="by length",
        what="the same, and gradients of parameters times 1 + eps sqrt(rows) u",
        samples="any",
        help="how many terms the sum of each gradient has",
        measure=_by_length,
    ),
    Yardstick(
        name="regrouped",
        what="the noise, with every sum made in other groups: what TTrace does",
        samples="any",
        help="none",
        measure=_regrouped,
    ),
    Yardstick(
        name="regrouped, exact weights",
        what="the same without noise on weights",
        samples="any",
        help="none",
        measure=_exact_weights,
    ),
    Yardstick(
        name="distance from fp64",
        what="no noise: the same step in double precision",
        samples="any",
        help="a model that runs in double precision, in twice the memory or more",
        measure=_exact,
    ),
)
