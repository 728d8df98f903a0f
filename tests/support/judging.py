"""Cases for single rules: what stands against tensors by their values, and what a rule adds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from ttrace.analysis.compare import Measured
from ttrace.analysis.judge import Accusation, CaseFile, Rule, Weight, excuse, exhibits_of
from ttrace.analysis.judge.reduce import weigh
from ttrace.analysis.judge.rules import find_rules
from ttrace.analysis.judge.rulings import Exhibit
from ttrace.core.ids import TensorId
from ttrace.core.logical import Alignment, Pair
from ttrace.core.results import TensorResult, Verdict
from ttrace.core.statistics import Tolerance

_WEIGHTS = {Verdict.PASS: Weight.PASS, Verdict.UNDECIDED: Weight.OPEN}


def made_source(**known: Any) -> Any:
    """A run of which nothing is known but this."""
    plain = {
        "faults": (),
        "updated_by_hand": False,
        "rounds_updates": False,
        "facts": SimpleNamespace(dtypes=(), facts={}),
        "spans": SimpleNamespace(path="somewhere"),
        "trace": SimpleNamespace(steps=(), by_id=dict),
    }
    return SimpleNamespace(**{**plain, **known})


def made_case(
    exhibits: Mapping[TensorId, Exhibit] | None = None,
    *,
    reference: Any = None,
    candidate: Any = None,
    perturbed: Sequence[Any] = (),
    codes: tuple[Any, Any] = (None, None),
    pairs: Mapping[TensorId, Pair] | None = None,
    measured: Mapping[TensorId, Measured] | None = None,
    **how: Any,
) -> CaseFile:
    sources: Any = SimpleNamespace(
        reference=reference or made_source(),
        candidate=candidate or made_source(),
        perturbed=perturbed,
        codes=codes,
    )
    compared: Any = SimpleNamespace(pairs=pairs or {}, measured=measured or {})
    return CaseFile(sources=sources, compared=compared, exhibits=exhibits or {}, **how)


def ruled(
    rule: Rule,
    results: Iterable[TensorResult],
    run: Callable[[Sequence[Any]], Sequence[Any]] = lambda jobs: [],
    *,
    pairs: Mapping[TensorId, Pair] | None = None,
    **how: Any,
) -> tuple[TensorResult, ...]:
    """What one rule makes of results that stand by their values."""
    results = tuple(results)
    exhibits = {r.id: _exhibit(r, (pairs or {}).get(r.id)) for r in results}
    case = made_case(exhibits, pairs=pairs, **how)
    stands = [
        Accusation(
            id=result.id,
            verdict=result.verdict,
            weight=_WEIGHTS.get(result.verdict, Weight.WRONG),
            finding=result.finding,
            specifics=result.specifics,
            ranks=result.ranks,
            ratio=result.ratio,
        )
        for result in results
    ]
    stands += rule.accuse(case, run(rule.jobs(case)))
    standing = weigh(exhibits, stands)
    return excuse(standing.values(), rule.excuse(case, standing))[0]


def _exhibit(result: TensorResult, pair: Pair | None) -> Exhibit:
    statistics = result.statistics
    reference, candidate = pair or (None, None)
    return Exhibit(
        alignment=Alignment(id=result.id, reference=reference, candidate=candidate),
        order=result.order,
        measured=None if statistics is None else Measured(statistics=statistics),
        tolerance=result.tolerance,
        judgements=result.judgements,
        error_eps=result.error_eps,
    )


def judged(
    alignment: Alignment, measured: Measured, tolerances: Mapping[TensorId, Tolerance]
) -> TensorResult:
    """The verdict of all rules on one tensor."""
    compared: Any = SimpleNamespace(
        aligned=SimpleNamespace(tensors=[alignment]),
        pairs={alignment.id: alignment.pair},
        measured={alignment.id: measured},
    )
    exhibits = exhibits_of(compared, tolerances)
    case = made_case(exhibits, pairs=compared.pairs, measured=compared.measured)
    accusations = [each for rule in find_rules() for each in rule.accuse(case, ())]
    return weigh(exhibits, accusations)[alignment.id]
