"""Errors of known kind and size, planted into recorded values.

Enters: a tensor, a size, a generator. Leaves: a spoilt copy. A size is relative to the part that is
spoilt, so that kinds can be compared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

Injection = Callable[[Tensor, float, torch.Generator], Tensor]

_HEADS = 4  # of the demo's model: a head is a quarter of the channels


def factor(values: Tensor, size: float, _: torch.Generator) -> Tensor:
    return values * (1 + size)


def one_row(values: Tensor, size: float, generator: torch.Generator) -> Tensor:
    rows = values.clone().flatten(0, -2)
    rows[_pick(len(rows), generator)] *= 1 + size
    return rows.reshape(values.shape)


def one_element(values: Tensor, size: float, generator: torch.Generator) -> Tensor:
    flat = values.clone().flatten()
    flat[_pick(len(flat), generator)] += size * _rms(values)
    return flat.reshape(values.shape)


def additive_noise(values: Tensor, size: float, generator: torch.Generator) -> Tensor:
    return values + size * _rms(values) * torch.randn(values.shape, generator=generator)


def one_head(values: Tensor, size: float, generator: torch.Generator) -> Tensor:
    heads = values.clone().unflatten(-1, (_HEADS, -1))
    heads[..., _pick(_HEADS, generator), :] *= 1 + size
    return heads.flatten(-2)


def dropped_token(values: Tensor, size: float, generator: torch.Generator) -> Tensor:
    """A share of a row is replaced by its neighbour's; all of it at size 1."""
    rows = values.clone().flatten(0, -2)
    place = _pick(len(rows) - 1, generator)
    rows[place] += size * (rows[place + 1] - rows[place])
    return rows.reshape(values.shape)


def low_precision(values: Tensor, size: float, _: torch.Generator) -> Tensor:
    """Rounded to a unit in the last place of `size` times each value's power of two."""
    mantissa, exponent = torch.frexp(values)
    return torch.ldexp((mantissa / size).round() * size, exponent)


INJECTIONS: Mapping[str, Injection] = {
    "factor": factor,
    "one row": one_row,
    "one element": one_element,
    "additive noise": additive_noise,
    "one head": one_head,
    "token dropped": dropped_token,
    "low-precision cast": low_precision,
}


def _pick(count: int, generator: torch.Generator) -> int:
    return int(torch.randint(count, (), generator=generator))


def _rms(values: Tensor) -> float:
    return float(values.square().mean().sqrt())
