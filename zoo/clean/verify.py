"""Whether a program trains in its layout as its reference does: in fp64, without TTrace.

Enters: a case. Leaves: the largest difference of any gradient or updated parameter, over the
largest element of all of them: some gradients are zero but for rounding, such as that of a key's
bias. Rounding of fp64 stays below 1e-9; a mistake does not.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from torch import Tensor

from ttrace.lab.functions import WorkerPool
from zoo.clean.case import Case
from zoo.clean.layouts import LAYOUTS
from zoo.clean.train import train_and_tell

Told = dict[str, Tensor]  # of one rank, by name

LIMIT = 1e-9  # chosen: between the rounding of fp64, summed over thousands, and that of fp32


def as_fp64(case: Case) -> Case:
    """By SGD: Muon computes in bf16 whatever it is given, and Adam's first step may be 0 / 0."""
    return replace(case, dtype="fp64", optimizer="sgd", mkldnn=False)


def differences(case: Case, pool: WorkerPool) -> dict[str, float]:
    """Of every gradient and parameter that a rank of the candidate holds whole."""
    case = as_fp64(case)
    (expected,) = pool.run(1, train_and_tell, case.reference)
    return apart(expected, pool.run(LAYOUTS[case.layout].ranks, train_and_tell, case))


def apart(expected: Told, ranks: Iterable[Told]) -> dict[str, float]:
    sizes = {kind: _largest(expected, kind) for kind in ("gradient", "after")}
    found: dict[str, float] = {}
    for held in ranks:
        for name, tensor in held.items():
            if tensor.shape == expected[name].shape:
                error = float((tensor - expected[name]).abs().max())
                found[name] = max(found.get(name, 0.0), error / sizes[name.rpartition(" ")[2]])
    return found


def _largest(tensors: Told, kind: str) -> float:
    return max(float(t.abs().max()) for name, t in tensors.items() if name.endswith(f" {kind}"))
