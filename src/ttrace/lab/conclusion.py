"""One conclusion from several comparisons: the plain one, and what isolated runs say of it.

Enters: results. Leaves: the result that is reported.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ttrace.analysis.accept import with_isolated
from ttrace.analysis.effect import enclosures_in, excused
from ttrace.core.finding import Note, Topic
from ttrace.core.results import CheckResult, Strength, TensorResult, Verdict
from ttrace.errors import CommandFailed

_OF_BOTH = (Topic.COARSER, Topic.OTHER_RECIPE)  # what isolated runs tell of a comparison


def stands_without(result: CheckResult, error: CommandFailed) -> CheckResult:
    """The verdict that can be given, where a run that would have told more did not end well."""
    note = Note(topic=Topic.NO_EVIDENCE, text=str(error))
    return replace(result, notes=(*result.notes, note))


def localized(result: CheckResult, isolation: CheckResult, *, strict: bool = False) -> CheckResult:
    """A comparison with the root causes that an isolated run found.

    Where it finds none, what is borderline and right by itself is rounding that has grown. What it
    found to be harmless inside a module is so here, too.
    """
    of_both = [note for note in isolation.notes if note.topic in _OF_BOTH]
    result = excused(result, enclosures_in(isolation))
    told = [note for note in result.notes if note.topic is not Topic.CODES_FLIP]  # which was done
    result = replace(result, notes=(*told, *of_both))
    if isolation.culprits:
        # Which numbers explain nothing is known where the culprits are.
        of_result = [note for note in result.notes if note.topic is not Topic.OTHER_NUMBER]
        unused = [note for note in isolation.notes if note.topic is Topic.OTHER_NUMBER]
        return replace(
            result,
            culprits=isolation.culprits,
            isolation=isolation,
            notes=(*of_result, *unused),
        )
    if (follows := with_isolated(result, isolation)) is not None:
        return follows
    passed = {r.id for r in isolation.tensors if r.verdict is Verdict.PASS}
    rounded = [r for r in result.failures if r.id in passed]
    is_borderline = result.strength is Strength.BORDERLINE and not strict
    if is_borderline and len(rounded) == len(result.failures):
        return _rounded(replace(result, isolation=isolation), rounded)
    if not result.failures:
        return replace(result, isolation=isolation, culprits=())
    note = Note(topic=Topic.NO_ROOT_CAUSE)
    return replace(result, isolation=isolation, notes=(*result.notes, note))


def _rounded(result: CheckResult, rounded: Sequence[TensorResult]) -> CheckResult:
    ids = {tensor.id for tensor in rounded}
    note = Note(
        topic=Topic.RIGHT_BY_ITSELF,
        count=len(ids),
        first=rounded[0].id if rounded else None,
        factor=result.largest_ratio,
    )
    return replace(
        result,
        culprits=(),
        notes=(*result.notes, note) if rounded else result.notes,
        tensors=tuple(
            replace(tensor, verdict=Verdict.BORDERLINE) if tensor.id in ids else tensor
            for tensor in result.tensors
        ),
    )
