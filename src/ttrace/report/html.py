"""One HTML file that shows a whole result: no network, no external script, font or style.

Enters: a CheckResult. Leaves: the text of the page. Its parts stand under page/, put together
here; the data is compressed JSON, which only ever becomes text nodes and numbers in the page.
The scripts know no kind and no verdict: what those are and how they look is part of the data.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import json
import math
from collections.abc import Callable, Iterable
from importlib import resources
from typing import Any

from ttrace import report
from ttrace.core.evidence import Detail
from ttrace.core.ids import Kind, KindGroup, display_module
from ttrace.core.plain import to_dict
from ttrace.core.results import CheckResult, TensorResult, Verdict
from ttrace.report import overall, scope, view, wording

# In this order: each uses only what stands above it.
SCRIPTS = ("dom", "scale", "data", "summary", "heat", "depth", "tensor", "settings", "main")

_CHARTS = {
    "Forward": (KindGroup.FORWARD,),
    "Backward and update": (KindGroup.BACKWARD, KindGroup.UPDATE),
}
_KIND_TITLES = {Kind.OPTIMIZER: "optim. state"}  # of the others, their names
_KINDS = {kind: number for number, kind in enumerate(Kind)}
_VERDICTS = {verdict: number for number, verdict in enumerate(Verdict)}
# What stands in the cell; without a sign it is drawn by its ratio.
_SIGNS = {
    Verdict.PASS: "",
    Verdict.MISMATCH: "",
    Verdict.BORDERLINE: "",
    Verdict.HARMLESS: "≈",
    Verdict.CONFLICT: "!",
    Verdict.INCOMPLETE: "∅",
    Verdict.MISSING: "∅",
    Verdict.EXTRA: "+",
    Verdict.NONFINITE: "NaN",
    Verdict.SHAPE: "⊥",
    Verdict.UNDECIDED: "?",
    Verdict.ACCEPTED: "✓",
}
# What the legend has room for.
_MEANINGS = {
    Verdict.CONFLICT: "replicas disagree",
    Verdict.MISSING: "missing",
    Verdict.HARMLESS: "different without effect",
    Verdict.UNDECIDED: "undecided",
    Verdict.ACCEPTED: "accepted",
}


def render(result: CheckResult) -> str:
    """The page as text."""
    script = "(() => {\n'use strict';\n" + "\n".join(_part(f"{n}.js") for n in SCRIPTS) + "\n})();"
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    data = json.dumps(payload(result), separators=(",", ":"), allow_nan=False)
    packed = base64.b64encode(gzip.compress(data.encode(), compresslevel=6, mtime=0)).decode()
    parts = {
        "@POLICY@": f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'",
        "@STYLE@": _part("style.css"),
        "@SCRIPT@": script,
        "@DATA@": packed,
        "@TITLE@": html.escape(overall.headline(result)),
    }
    page = _part("page.html")
    for name, text in parts.items():
        # The title comes last and alone has words of a user: they must not be taken for a name.
        page = page.replace(name, text)
    return page


def payload(result: CheckResult) -> dict[str, Any]:
    """What the page draws. Tensors go column by column: that compresses best."""
    comparisons = [_comparison("whole step", result)]
    if result.isolation is not None:
        comparisons.append(_comparison("isolated", result.isolation))
    evidence_in = 1 if result.blamed_in is result.isolation else 0
    return {
        "headline": overall.headline(result),
        "exit_code": result.exit_code,
        "look_first": view.look_first(result),
        "follow_on": overall.follow_on(result),
        "counts": overall.counts(result),
        "nearness": overall.nearness(result),
        "covered": scope.judged(result),
        "root_causes": [
            {
                "where": cause.where,
                "phase": cause.phase,
                "reason": cause.reason,
                "class": cause.class_name,
                "source": cause.source,
                "more": cause.more,
                "places": list(cause.places),
                "evidence": [
                    {"id": e.id, "sentence": e.sentence, "rows": list(e.rows), "note": e.note}
                    for e in cause.evidence
                ],
            }
            for cause in view.grouped(result)
        ],
        **_vocabulary(),
        "evidence_in": evidence_in,
        "comparisons": comparisons,
        "modules": [[m.path, m.class_name, m.source] for m in result.modules],
        "runs": [to_dict(run) for run in result.runs],
        "hooks": [result.coverage.hooks_fired, result.coverage.hooks_expected],
        "not_covered": [[what, list(names)] for what, names in overall.not_covered(result)],
        "notes": [*scope.said_of_accepted(result), *map(overall.note, result.notes)],
    }


def _vocabulary() -> dict[str, Any]:
    """What kinds and verdicts there are, in order; tensors have their numbers."""
    return {
        "root": display_module(""),
        "groups": [group.value for group in KindGroup],
        "charts": [{"title": title, "groups": list(groups)} for title, groups in _CHARTS.items()],
        "kinds": [
            {
                "name": kind.value,
                "title": _KIND_TITLES.get(kind, kind.value.replace("_", " ")),
                "group": kind.group.value,
                "is_before_step": kind.is_before_step,
            }
            for kind in Kind
        ],
        "verdicts": [
            {
                "name": verdict.value,
                "is_failure": verdict.is_failure,
                "is_undecided": verdict is Verdict.UNDECIDED,
                "sign": _SIGNS[verdict],
                "meaning": _MEANINGS.get(verdict, ""),
            }
            for verdict in Verdict
        ],
    }


def _comparison(name: str, result: CheckResult) -> dict[str, Any]:
    # The text of an id is what stands before its module, the module, and what stands after it.
    befores = {t.id.step: t.id.around_module[0] for t in result.tensors}
    steps = _Table(befores)
    modules = _Table(tensor.id.module for tensor in result.tensors)
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
        "module": column(lambda t: modules[t.id.module]),
        "after": column(lambda t: afters[t.id.around_module[1]]),
        "kind": column(lambda t: _KINDS[t.id.kind]),
        "verdict": column(lambda t: _VERDICTS[t.verdict]),
        "dtype": column(lambda t: dtypes[t.dtype]),
        "source": column(lambda t: sources["" if t.tolerance is None else t.tolerance.source]),
        "shape": column(lambda t: list(t.shape)),
        "ratio": column(lambda t: _number(t.ratio)),
        "eps": column(lambda t: _number(t.error_eps)),
        "relative": column(
            lambda t: None if t.statistics is None else _number(t.statistics.relative_error)
        ),
        "allowed": column(_allowed),
        "ranks": column(lambda t: list(t.ranks)),
        "note": column(wording.finding),
        # One statistic for most; all of them only where something is to be explained.
        "judged": column(lambda t: _judged(t, every=t.verdict.is_failure)),
        "details": {
            places[detail.id]: _detail(detail) for detail in result.details if detail.id in places
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
    return _number(tensor.tolerance.error_norm / norm) if norm else None


def _judged(tensor: TensorResult, *, every: bool) -> list[list[object]]:
    judged = sorted(view.judgements(tensor), key=lambda j: -j.ratio)
    return [
        [j.statistic, _number(j.value), _number(j.allowed), _number(j.ratio), j.place]
        for j in (judged if every else judged[:1])
    ]


def _detail(detail: Detail) -> dict[str, Any]:
    return {
        "shards": [
            {
                "ranks": list(shard.ranks),
                "microbatches": list(shard.microbatches),
                "role": shard.role,
                "runs": [[list(run) for run in runs] for runs in shard.runs],
                "relative": _number(shard.relative_error),
                "ratio": _number(shard.ratio),
                "agrees": shard.agrees,
            }
            for shard in detail.shards
        ],
        "tiles": [[_tenths(value) for value in row] for row in detail.tiles],
        "reference_rms": _number(detail.reference_rms),
        "allowed_rms": _number(detail.allowed_rms),
        "ulp": list(detail.ulp),
        "rows": [
            [list(row.index), _number(row.error_norm), _number(row.reference_norm), list(row.ranks)]
            for row in detail.worst_rows
        ],
        "ranks": list(detail.wrong_ranks),
        "diagnosis": "" if detail.diagnosis is None else wording.diagnosis(detail.diagnosis),
        "examined": detail.examined,
    }


def _number(value: float | None) -> float | str | None:
    """Four digits are more than is drawn; JSON has neither infinity nor NaN."""
    if value is None:
        return None
    return float(f"{value:.4g}") if math.isfinite(value) else str(value)


def _tenths(value: float) -> int | None:
    """Ten times log10, whole: finer than colours are told apart, and small; None is zero."""
    return round(10 * math.log10(value)) if 0 < value < math.inf else None


def _part(name: str) -> str:
    return resources.files(report).joinpath("page", name).read_text(encoding="utf-8")
