"""Results of a few modules, each as wrong as a test says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tests.support.made_results import made, tensor
from ttrace.core.blame import Blame, Culprit, Phase, Reason
from ttrace.core.ids import TensorId
from ttrace.core.results import CheckResult, Verdict

CLEAN = made(2)


Told = float | Verdict


def result(
    tensors: Mapping[str, Told],
    blamed: Mapping[str, tuple[str, ...]] | None = None,
) -> CheckResult:
    """Of outputs of modules, by their names: an error over tolerance, or a verdict."""
    found = []
    for order, (name, told) in enumerate(tensors.items()):
        verdict = told if isinstance(told, Verdict) else None
        ratio = 3.0 if isinstance(told, Verdict) else told
        found.append(tensor(output(name), order, ratio, verdict))
    culprits = tuple(
        Culprit(
            blame=Blame.of(name, phase=Phase.FORWARD),
            reason=Reason.FIRST_WRONG_OUTPUT,
            evidence=tuple(map(output, evidence)),
        )
        for name, evidence in (blamed or {}).items()
    )
    return replace(CLEAN, tensors=tuple(found), culprits=culprits)


def output(name: str) -> TensorId:
    return TensorId.parse(f"step0/{name}:output.0")
