"""One HTML file that shows a whole result: no network, no external script, font or style.

Enters: a CheckResult. Leaves: the text of the page. Its parts stand under page/, put together
here; the data is compressed JSON, which only ever becomes text nodes and numbers in the page. The
scripts know no kind and no verdict: what those are and how they look is part of the data. Each
comparison is columns, a value of every tensor in each: that compresses best.

The configuration says in what two runs differ, and what is to be expected of that:

    ranks     1                   4            expected: that is what is compared
    lr        0.00025             0.0005       differs
    torch     2.13.0              2.13.0       the same

A seed that nobody set is drawn anew in every run, and says nothing.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import json
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib import resources
from typing import Any

from ttrace import report
from ttrace.core.blame import Diagnosis
from ttrace.core.evidence import Detail, RunFacts
from ttrace.core.finding import Topic
from ttrace.core.ids import Kind, KindGroup, display_module, module_text
from ttrace.core.mesh import Mesh
from ttrace.core.record import Difference, Owner
from ttrace.core.results import CheckResult, TensorResult, Verdict
from ttrace.report import markdown, overall, view, wording
from ttrace.report.card import Card, cards
from ttrace.report.catalogue.tensors import KIND_TERMS, OTHER_TERMS, STATISTICS, VERDICTS
from ttrace.report.numbers import counted
from ttrace.report.wording import mesh_of
from ttrace.text import inert
from ttrace.trace.store import PathOrUrl, place_of

# In this order: each uses only what stands above it.
SCRIPTS = (
    *("dom", "numbers", "copy", "terms", "scale", "link", "mesh", "code", "sure", "card", "tree"),
    *("data", "tabs", "heat", "printed", "depth", "difference", "tensor", "settings", "main"),
)
_SEED = "torch seed"
_DRAWN = 1 << 32  # torch draws seeds of 64 bits; people write small ones
_NONE = "none"
_KINDS = {kind: number for number, kind in enumerate(Kind)}
_VERDICTS = {verdict: number for number, verdict in enumerate(Verdict)}
_CHARTS = {
    "Forward": (KindGroup.FORWARD,),
    "Backward and update": (KindGroup.BACKWARD, KindGroup.UPDATE),
}
_KIND_TITLES = {Kind.OPTIMIZER: "optim. state"}  # of the others, their names
_NUMBERS = (float, int, bool, type(None))  # nearly all of the data


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
        "@TITLE@": html.escape(inert(overall.headline(result))),
    }
    page = _part("page.html")
    for name, text in parts.items():
        # The title comes last and alone has words of a user: they must not be taken for a name.
        page = page.replace(name, text)
    return page


def write_report(result: CheckResult, place: PathOrUrl | str) -> None:
    """The page as a file, of this machine or behind a URL."""
    place_of(place).write_text(render(result), encoding="utf-8")


def _part(name: str) -> str:
    return resources.files(report).joinpath("page", name).read_text(encoding="utf-8")


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One thing in which runs may differ."""

    name: str
    reference: str
    candidate: str
    is_expected: bool = False  # to differ between a run of one rank and one of many

    @property
    def differs(self) -> bool:
        return self.reference != self.candidate


def settings(result: CheckResult) -> tuple[Setting, ...]:
    """What was told of both runs; nothing where one is not told of."""
    runs = {run.role: run for run in reversed(result.runs)}
    reference, candidate = runs.get("reference"), runs.get("candidate")
    if reference is None or candidate is None:
        return ()
    facts = [
        Setting(name=name, reference=value(reference), candidate=value(candidate), is_expected=True)
        for name, value in _EXPECTED.items()
    ]
    facts += [
        Setting(name=name, reference=value(reference), candidate=value(candidate))
        for name, value in _OTHERS.items()
    ]
    mine, theirs = (run.versions | run.facts for run in (reference, candidate))
    facts += [
        Setting(name=name, reference=mine.get(name, _NONE), candidate=theirs.get(name, _NONE))
        for name in dict.fromkeys((*mine, *theirs))
        if not (name == _SEED and _is_drawn(mine.get(name)) and _is_drawn(theirs.get(name)))
    ]
    return (*facts, *map(_number, _differences(result)))


_EXPECTED: dict[str, Callable[[RunFacts], str]] = {
    "ranks": lambda run: str(run.world_size),
    "mesh": lambda run: " x ".join(f"{axis} {size}" for axis, size in run.mesh.items()) or _NONE,
}
_OTHERS: dict[str, Callable[[RunFacts], str]] = {
    "dtype": lambda run: ", ".join(run.dtypes),
    "device": lambda run: run.device,
    "adapter": lambda run: run.adapter,
    "steps": lambda run: str(run.steps),
}


def _is_drawn(seed: str | None) -> bool:
    return seed is not None and seed.isdecimal() and int(seed) >= _DRAWN


def _differences(result: CheckResult) -> Iterator[Difference]:
    """Hyperparameters: of culprits, and without an effect; each once."""
    noted = (note.difference for note in result.notes if note.topic is Topic.OTHER_NUMBER)
    of_culprits = (each for culprit in result.culprits for each in culprit.differences)
    found = [*of_culprits, *(each for each in noted if each is not None)]
    return iter(dict.fromkeys(found))


def _number(found: Difference) -> Setting:
    owner = f" of {display_module(found.owned[0])}" if found.owner is Owner.MODULE else ""
    where = f" (ranks {', '.join(map(str, found.ranks))})" if found.ranks else ""
    return Setting(
        name=f"{found.name}{owner}",
        reference=", ".join(f"{value:.6g}" for value in found.reference),
        candidate=", ".join(f"{value:.6g}" for value in found.candidate) + where,
    )


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


def payload(result: CheckResult) -> dict[str, Any]:
    """What the page draws. Tensors go column by column: that compresses best."""
    mesh = mesh_of(result)
    comparisons = [comparison_columns("whole step", result, mesh)]
    if result.isolation is not None:
        comparisons.append(comparison_columns("isolated", result.isolation, mesh))
    evidence_in = 1 if result.blamed_in is result.isolation else 0
    data = {
        "headline": overall.headline(result),
        "cards": [card_data(card) for card in cards(result)],
        "mesh": _mesh(mesh),
        "configuration": _configuration(result),
        "terms": _terms(),
        "exit_code": result.exit_code,
        "follow_on": overall.follow_on(result),
        "counts": overall.counts(result),
        "nearness": overall.nearness(result),
        "covered": overall.judged(result),
        **_vocabulary(),
        "evidence_in": evidence_in,
        "comparisons": comparisons,
        "modules": [[module_text(m.path), m.class_name, m.source] for m in result.modules],
        "hooks": [result.coverage.hooks_fired, result.coverage.hooks_expected],
        "not_covered": [[what, list(names)] for what, names in overall.not_covered(result)],
        "notes": [*overall.said_of_accepted(result), *map(overall.note, result.notes)],
    }
    # Markdown has lines of its own, and is inert by itself.
    return {**_shown(data), "issue": markdown.render(result)}


def _shown(data: Any) -> Any:
    """The same with every text inert, wherever it stands."""
    if isinstance(data, str):
        return inert(data)
    if isinstance(data, dict):
        return {_shown(key): _shown(value) for key, value in data.items()}
    if isinstance(data, list):
        return [v if type(v) in _NUMBERS else _shown(v) for v in data]
    return data


def _mesh(mesh: Mesh) -> dict[str, Any]:
    """The axes that tell ranks apart, and by rank its coordinates and its name."""
    return {
        "axes": [axis for axis, _ in mesh.naming],
        "sizes": [mesh.axes[axis] for axis, _ in mesh.naming],
        "coordinates": [[own[place] for _, place in mesh.naming] for own in mesh.coordinates],
        "names": [mesh.name(rank) for rank in range(len(mesh.coordinates))],
    }


def _terms() -> dict[str, str]:
    return {
        **{str(statistic): entry.term for statistic, entry in STATISTICS.items()},
        **{str(verdict): entry.term for verdict, entry in VERDICTS.items()},
        **{kind.value.replace("_", " "): said for kind, said in KIND_TERMS.items()},
        **OTHER_TERMS,
    }


def card_data(card: Card) -> dict[str, Any]:
    """One root cause."""
    cause = card.cause
    return {
        "where": cause.where,
        "phase": cause.phase,
        "class": cause.class_name,
        "source": card.source,
        "behind": card.behind,
        "places": list(cause.places),
        "badge": card.badge.words,
        "known": card.badge.is_known,
        "near": card.badge.nearest,
        "looks": card.looks,
        "grade": card.strength.value,
        "sure": card.sure,
        "bar": None
        if card.bar is None
        else {
            "noise": plain_number(card.bar.noise),
            "allowed": plain_number(card.bar.allowed),
            "error": plain_number(card.bar.error),
        },
        "ranks": {"words": card.ranks_said, "wrong": list(card.ranks)},
        "look_for": card.hint,
        "commands": [[command.purpose, command.text] for command in card.commands],
        "code": [
            {
                "file": e.file,
                "line": e.line,
                "function": e.function,
                "first": e.first,
                "lines": list(e.lines),
                "own": e.is_own,
            }
            for e in card.code
        ],
        "reason": card.why,
        "evidence": [
            {"id": e.id, "sentence": e.sentence, "rows": list(e.rows), "note": e.note}
            for e in cause.evidence
        ],
        "more": cause.more,
        "step": card.step,
        "expected": card.expected,
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
                "sign": VERDICTS[verdict].sign,
                "meaning": VERDICTS[verdict].legend,
            }
            for verdict in Verdict
        ],
    }


def _configuration(result: CheckResult) -> dict[str, Any]:
    """What differs, what is the same, and what the tolerances come from."""
    found = settings(result)
    runs = len(result.perturbed)
    return {
        "differ": [
            [s.name, s.reference, s.candidate, "expected" if s.is_expected else "differs"]
            for s in found
            if s.differs
        ],
        "same": [[s.name, s.reference] for s in found if not s.differs],
        "noise": counted(runs, "perturbed reference run"),
    }
