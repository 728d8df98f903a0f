"""The promises of an adapter, as a test that whoever writes one can run.

    import torch
    from ttrace.adapters.conformance import Case, run_conformance
    from ttrace_mine import MyAdapter, MyEngine

    def make_case() -> Case:
        torch.manual_seed(0)
        model = MyEngine(torch.nn.Linear(4, 4))
        optimizer = torch.optim.AdamW(model.parameters())

        def step() -> torch.Tensor:
            loss = model(torch.ones(2, 4)).square().mean()
            model.backward(loss)
            optimizer.step()
            return loss

        return Case(model=model, optimizers=[optimizer], step=step)

    def test_my_adapter_keeps_its_promises() -> None:
        run_conformance(MyAdapter, make_case)

Enters: how to make the adapter, and how to make a model with one training step, the same each time.
Leaves: nothing, or an AssertionError with a sentence for every promise that is broken. In a run of
several ranks all of them call it: the steps are theirs together. It needs no test framework.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ttrace.adapters.base import Adapter
from ttrace.adapters.conformance.answers import (
    coordinates_are_within_sizes,
    hooks_are_known,
    local_tensors_are_inverse,
    modules_have_unique_paths,
    parameters_are_unique,
)
from ttrace.adapters.conformance.steps import (
    Case,
    contexts_restore_what_they_replace,
    watching_changes_no_number,
)

__all__ = ["Case", "run_conformance"]

Check = Callable[[Adapter], Iterator[str]]
_CHECKS: tuple[Check, ...] = (
    hooks_are_known,
    coordinates_are_within_sizes,
    modules_have_unique_paths,
    parameters_are_unique,
    local_tensors_are_inverse,
    contexts_restore_what_they_replace,
)


def run_conformance(make_adapter: Callable[[Any], Adapter], make_case: Callable[[], Case]) -> None:
    """Raise an AssertionError that names every promise which the adapter does not keep."""
    adapter = make_adapter(make_case().model)
    if not isinstance(adapter, Adapter):
        kind = type(adapter).__name__
        raise AssertionError(f"{kind} does not derive from ttrace.adapters.base.Adapter")
    faults = [fault for check in _CHECKS for fault in _faults(check.__name__, check(adapter))]
    steps = watching_changes_no_number(make_adapter, make_case)
    faults += _faults(watching_changes_no_number.__name__, steps)
    if faults:
        count = "a promise" if len(faults) == 1 else f"{len(faults)} promises"
        kind = type(adapter).__name__
        raise AssertionError(f"{kind} breaks {count}:\n  " + "\n  ".join(faults))


def _faults(check: str, found: Iterable[str]) -> Iterator[str]:
    """Each once; a check that fails by itself is a fault too, and the next one still runs."""
    seen: set[str] = set()
    try:
        for fault in found:
            if fault not in seen:
                seen.add(fault)
                yield f"{check}: {fault}"
    except Exception as error:  # noqa: BLE001  (of the adapter; other ranks wait in the next check)
        yield f"{check}: {type(error).__name__}: {error}"
