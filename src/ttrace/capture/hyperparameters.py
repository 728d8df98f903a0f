"""Which numbers was a step made with? Learning rates, betas, eps, the norm to clip to.

Enters: modules, optimizers and what is told of the step. Leaves: hyperparameters, each with the
step from which on it holds. Only numbers that do not follow from the layout are of interest: those
of an optimizer's groups, and of modules the floating-point ones.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from numbers import Real

import torch
from torch.optim import Optimizer

from ttrace.adapters.base import Adapter
from ttrace.capture.recorder import Recorder
from ttrace.core.record import Hyperparameter, Owner

# How an optimizer computes, not what.
_IMPLEMENTATION = frozenset({"params", "foreach", "fused", "capturable", "differentiable"})
# Often written as whole numbers; others are sizes, which layouts change.
_MAY_BE_WHOLE = frozenset({"p", "eps", "base", "theta", "rope_theta", "rotary_base"})


class Hyperparameters:
    """Keeps every number when it is first met in a recorded step, and when it changes."""

    def __init__(self, adapter: Adapter, recorder: Recorder) -> None:
        self._adapter = adapter
        self._recorder = recorder
        # Of what, the name of the number; then by the name of its owner.
        self._last: dict[tuple[Owner, str], dict[str, tuple[float, ...]]] = defaultdict(dict)
        self._found: dict[tuple[int, Owner, str, tuple[float, ...]], list[str]] = {}

    def of_modules(self, step: int) -> None:
        for path, module in self._adapter.modules():
            held = vars(module).items()
            wanted = [each for each in held if type(each[1]) is float or each[0] in _MAY_BE_WHOLE]
            for name, value in wanted:
                if not name.startswith("_"):
                    self._keep(step, Owner.MODULE, name, value, [path])

    def of_optimizer(self, step: int, optimizer: Optimizer) -> None:
        names: dict[int, list[str]] = defaultdict(list)  # one tensor may stand for several
        for parameter in self._adapter.parameters():
            updated = self._adapter.updated(parameter.tensor)
            names[id(updated)].append(f"{parameter.module}.{parameter.name}".lstrip("."))
        for group in optimizer.param_groups:
            owned = [name for p in group["params"] for name in names.get(id(p), ())]
            for name, value in group.items():
                if name not in _IMPLEMENTATION:
                    self._keep(step, Owner.PARAMETER, name, value, owned)

    def of_step(self, step: int, name: str, value: object) -> None:
        self._keep(step, Owner.STEP, name, value, [""])

    def found(self) -> tuple[Hyperparameter, ...]:
        return tuple(
            Hyperparameter(owner=owner, name=name, values=values, step=step, owned=tuple(owned))
            for (step, owner, name, values), owned in self._found.items()
        )

    def _keep(
        self, step: int, owner: Owner, name: str, value: object, owned: Sequence[str]
    ) -> None:
        values = _numbers(value)
        is_kept = not self._recorder.is_muted  # in a long run some change at every step
        if is_kept and values:
            last = self._last[owner, name]
            changed = {each: values for each in owned if last.get(each) != values}
            if changed:
                last |= changed
                self._found.setdefault((step, owner, name, values), []).extend(changed)


def _numbers(value: object) -> tuple[float, ...]:
    """A number, or a few of them; empty where it is something else or not finite."""
    items = value if isinstance(value, tuple | list) else (value,)
    numbers = [
        float(item)
        for item in items
        if isinstance(item, Real) or (isinstance(item, torch.Tensor) and item.numel() == 1)
    ]
    is_whole = len(numbers) == len(items) and all(map(math.isfinite, numbers))
    return tuple(numbers) if is_whole else ()
