"""The data of the page: everything that it draws, as plain values.

Enters: a CheckResult. Leaves: what JSON can hold. The scripts know no kind and no verdict: what
those are and how they look is part of the data.
"""

from __future__ import annotations

from typing import Any

from ttrace.core.ids import Kind, KindGroup, display_module, module_text
from ttrace.core.mesh import Mesh
from ttrace.core.results import CheckResult, Verdict
from ttrace.report import markdown, overall, scope
from ttrace.report.card import Card, cards
from ttrace.report.columns import comparison_columns, plain_number
from ttrace.report.configuration import settings
from ttrace.report.numbers import counted
from ttrace.report.ranks import mesh_of
from ttrace.report.terms import KIND_TERMS, OTHER_TERMS, STATISTIC_TERMS, VERDICT_TERMS
from ttrace.text import inert

_CHARTS = {
    "Forward": (KindGroup.FORWARD,),
    "Backward and update": (KindGroup.BACKWARD, KindGroup.UPDATE),
}
_KIND_TITLES = {Kind.OPTIMIZER: "optim. state"}  # of the others, their names
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
_NUMBERS = (float, int, bool, type(None))  # nearly all of the data


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
        "covered": scope.judged(result),
        **_vocabulary(),
        "evidence_in": evidence_in,
        "comparisons": comparisons,
        "modules": [[module_text(m.path), m.class_name, m.source] for m in result.modules],
        "hooks": [result.coverage.hooks_fired, result.coverage.hooks_expected],
        "not_covered": [[what, list(names)] for what, names in overall.not_covered(result)],
        "notes": [*scope.said_of_accepted(result), *map(overall.note, result.notes)],
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
        **{str(statistic): said for statistic, said in STATISTIC_TERMS.items()},
        **{str(verdict): said for verdict, said in VERDICT_TERMS.items()},
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
                "sign": _SIGNS[verdict],
                "meaning": _MEANINGS.get(verdict, ""),
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
