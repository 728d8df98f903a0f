"""Hyperparameters: numbers that a step is made with, and in which two runs may differ.

    Hyperparameter(owner=Owner.PARAMETER, name="lr", values=(5e-4,), step=0, owned=("head.weight",))
    Difference(owner=Owner.PARAMETER, name="lr", reference=(2.5e-4,), candidate=(5e-4,), ranks=(1,))

They belong to parameters (what an optimizer updates them with), to modules (eps, p, base), or to
the step (the norm to clip to, the scale of the loss). Values only.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

CLIPPED_TO = "norm to clip to"
LOSS_SCALE = "loss scale"


class Owner(StrEnum):
    """What a hyperparameter belongs to."""

    PARAMETER = "parameter"
    MODULE = "module"
    STEP = "step"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hyperparameter:
    """One number, or several such as betas, from a step on; `owned` are names or module paths."""

    owner: Owner
    name: str
    values: tuple[float, ...]
    step: int
    owned: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A hyperparameter that the candidate has another value of."""

    owner: Owner
    name: str
    reference: tuple[float, ...]
    candidate: tuple[float, ...]
    owned: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()  # empty where it differs on all
    step: int = 0  # the first one
