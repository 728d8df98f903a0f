"""One comparison as columns, a value of every tensor in each: that compresses best.

Enters: a CheckResult. Leaves: plain values for the page, with the details of suspects.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

from ttrace.core.blame import Diagnosis
from ttrace.core.evidence import Detail
from ttrace.core.ids import Kind, module_text
from ttrace.core.mesh import Mesh
from ttrace.core.results import CheckResult, TensorResult, Verdict
from ttrace.report import view, wording

_KINDS = {kind: number for number, kind in enumerate(Kind)}
_VERDICTS = {verdict: number for number, verdict in enumerate(Verdict)}


def comparison_columns(name: str, result: CheckResult, mesh: Mesh) -> dict[str, Any]:
    # The text of an id is what stands before its module, the module, and what stands after it.
    befores = {t.id.step: t.id.around_module[0] for t in result.tensors}
    steps = _Table(befores)
    modules = _Table(module_text(tensor.id.module) for tensor in result.tensors)
    afters = _Table(tensor.id.around_module[1] for tensor in result.tensors)
    dtypes = _Table(tensor.dtype for tensor in result.tensors)
    sources = _Table("" if t.tolerance is None else t.tolerance.source for t in result.tensors)

    def column(value: Callable[[TensorResult], object]) -> list[object]:
        return [value(tensor) for tensor in result.tensors]

    places = {tensor.id: number for number, tensor in enumerate(result.tensors)}
    return {
        "name": name,
        "tables": {
            "step": steps.values,
            "before": list(befores.values()),
            "module": modules.values,
            "after": afters.values,
            "dtype": dtypes.values,
            "source": sources.values,
        },
        "step": column(lambda t: steps[t.id.step]),
        "module": column(lambda t: modules[module_text(t.id.module)]),
        "after": column(lambda t: afters[t.id.around_module[1]]),
        "kind": column(lambda t: _KINDS[t.id.kind]),
        "verdict": column(lambda t: _VERDICTS[t.verdict]),
        "dtype": column(lambda t: dtypes[t.dtype]),
        "source": column(lambda t: sources["" if t.tolerance is None else t.tolerance.source]),
        "shape": column(lambda t: list(t.shape)),
        "ratio": column(lambda t: plain_number(t.ratio)),
        "eps": column(lambda t: plain_number(t.error_eps)),
        "relative": column(
            lambda t: None if t.statistics is None else plain_number(t.statistics.relative_error)
        ),
        "allowed": column(_allowed),
        "ranks": column(lambda t: list(t.ranks)),
        "note": column(lambda t: wording.finding(t, mesh)),
        # One statistic for most; all of them only where something is to be explained.
        "judged": column(lambda t: _judged(t, every=t.verdict.is_failure)),
        "details": {
            places[detail.id]: _detail(detail, mesh)
            for detail in result.details
            if detail.id in places
        },
    }


class _Table:
    """Values by number, so that each is written once."""

    def __init__(self, values: Iterable[str | int]) -> None:
        self._numbers = {value: number for number, value in enumerate(dict.fromkeys(values))}

    def __getitem__(self, value: str | int) -> int:
        return self._numbers[value]

    @property
    def values(self) -> list[str | int]:
        return list(self._numbers)


def _allowed(tensor: TensorResult) -> float | str | None:
    """The tolerance relative to the reference, as the error is drawn."""
    if tensor.tolerance is None or tensor.statistics is None:
        return None
    norm = tensor.statistics.reference_norm
    return plain_number(tensor.tolerance.error_norm / norm) if norm else None


def _judged(tensor: TensorResult, *, every: bool) -> list[list[object]]:
    judged = sorted(view.judgements(tensor), key=lambda j: -j.ratio)
    return [
        [
            j.statistic,
            plain_number(j.value),
            plain_number(j.allowed),
            plain_number(j.ratio),
            j.place,
        ]
        for j in (judged if every else judged[:1])
    ]


def _detail(detail: Detail, mesh: Mesh) -> dict[str, Any]:
    return {
        "shards": [
            {
                "ranks": list(shard.ranks),
                "microbatches": list(shard.microbatches),
                "role": shard.role,
                "runs": [[list(run) for run in runs] for runs in shard.runs],
                "relative": plain_number(shard.relative_error),
                "ratio": plain_number(shard.ratio),
                "agrees": shard.agrees,
            }
            for shard in detail.shards
        ],
        "tiles": [[_tenths(value) for value in row] for row in detail.tiles],
        "reference_rms": plain_number(detail.reference_rms),
        "allowed_rms": plain_number(detail.allowed_rms),
        "ulp": list(detail.ulp),
        "rows": [
            [
                list(row.index),
                plain_number(row.error_norm),
                plain_number(row.reference_norm),
                list(row.ranks),
            ]
            for row in detail.worst_rows
        ],
        "ranks": list(detail.wrong_ranks),
        "diagnosis": _said(detail.diagnosis, mesh),
        "nearest": _said(None if detail.nearest is None else detail.nearest.diagnosis, mesh),
        "elements": [
            [list(e.index), plain_number(e.reference), plain_number(e.candidate), list(e.ranks)]
            for e in detail.elements
        ],
        "scalars": [
            [rank, plain_number(scalar.value)] for scalar in detail.scalars for rank in scalar.ranks
        ],
        "examined": detail.examined,
    }


def _said(found: Diagnosis | None, mesh: Mesh) -> str:
    return "" if found is None else wording.diagnosis(found, mesh)


def plain_number(value: float | None) -> float | str | None:
    """Four digits are more than is drawn; JSON has neither infinity nor NaN."""
    if value is None:
        return None
    return float(f"{value:.4g}") if math.isfinite(value) else str(value)


def _tenths(value: float) -> int | None:
    """Ten times log10, whole: finer than colours are told apart, and small; None is zero."""
    return round(10 * math.log10(value)) if 0 < value < math.inf else None
