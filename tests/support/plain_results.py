"""A step of a small model as a list of ids, and results in which some of them are wrong.

The model is `a`, then `b` with the layers `b.c` and `b.d`, then `e`. STEP has all ids in the order
in which a step makes them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from ttrace.analysis.localize import localize
from ttrace.core.blame import Culprit
from ttrace.core.finding import Finding
from ttrace.core.ids import TensorId
from ttrace.core.results import TensorResult, Verdict
from ttrace.core.statistics import Statistics

EQUAL = Statistics(
    count=4,
    error_norm=0.0,
    reference_norm=2.0,
    candidate_norm=2.0,
    dot=4.0,
    max_error=0.0,
    error_sum=0.0,
    nonfinite_reference=0,
    nonfinite_candidate=0,
    unequal=0,
)


ROUNDED = replace(EQUAL, error_norm=1e-7, unequal=1)


# A step in execution order, all of it right.
STEP = (
    *("a:param.weight", "b.c:param.weight", "b.d:param.weight", "e:param.weight"),
    *(":input.0", "a:input.0", "a:output.0", "b:input.0", "b.c:input.0", "b.c:output.0"),
    *("b.d:input.0", "b.d:output.0", "b:output.0", "e:input.0", "e:output.0", ":output.0", ":loss"),
    *(":grad_output.0", "e:grad_output.0", "e:grad_input.0", "b:grad_output.0"),
    *("b.d:grad_output.0", "b.d:grad_input.0", "b.c:grad_output.0", "b.c:grad_input.0"),
    *("b:grad_input.0", "a:grad_output.0", "a:grad_input.0"),
    *("a:grad.weight", "b.c:grad.weight", "b.d:grad.weight", "e:grad.weight"),
    *("a:accumulated_grad.weight", "b.c:accumulated_grad.weight"),
    *("b.d:accumulated_grad.weight", "e:accumulated_grad.weight"),
    *("a:main_grad.weight", "b.c:main_grad.weight", "b.d:main_grad.weight", "e:main_grad.weight"),
    *(":grad_norm", "a:clipped_grad.weight", "b.c:clipped_grad.weight"),
    *("b.d:clipped_grad.weight", "e:clipped_grad.weight"),
    *("a:optimizer.weight.exp_avg", "b.c:optimizer.weight.exp_avg"),
    *("b.d:optimizer.weight.exp_avg", "e:optimizer.weight.exp_avg"),
    *("a:param_after.weight", "b.c:param_after.weight"),
    *("b.d:param_after.weight", "e:param_after.weight"),
    *("b.d:buffer.mean",),
)


def gained(gain: float) -> Statistics:
    return replace(ROUNDED, dot=4.0 * gain, error_norm=2.0 * abs(gain - 1))


def blame(
    wrong: Mapping[str, Verdict] | str,
    *,
    step: int = 0,
    consumers: Mapping[str, tuple[str, ...]] | None = None,
    statistics: Mapping[str, Statistics] | None = None,
    findings: Mapping[str, Finding] | None = None,
    unseen: Collection[str] = (),
) -> tuple[Culprit, ...]:
    """The culprits of a step in which these tensors are wrong, and kinds of others unseen."""
    if isinstance(wrong, str):
        wrong = dict.fromkeys(wrong.split(), Verdict.MISMATCH)
    results = [
        TensorResult(
            id=id_of(name, step),
            verdict=wrong.get(name, Verdict.PASS),
            order=order,
            statistics=(statistics or {}).get(name, ROUNDED),
            ratio=7.0 if name in wrong else 0.1,
            finding=(findings or {}).get(name),
        )
        for order, name in enumerate(STEP)
        if id_of(name).kind.value not in unseen
    ]
    assert set(wrong) <= set(STEP)
    seen = {
        id_of(name, step): tuple(id_of(user, step) for user in users)
        for name, users in (consumers or {}).items()
    }
    return localize(results, seen)


def id_of(name: str, step: int = 0) -> TensorId:
    return TensorId.parse(f"step{step}/{name}")


def all_of(kind: str) -> str:
    return " ".join(name for name in STEP if f":{kind}." in name)
