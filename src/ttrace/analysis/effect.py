"""Effect decides: what differs inside a module is no mistake where all that leaves it is right.

    scores scaled by 2, and by 1/2 after the softmax's input       the attention is right
    keys in another order, and values too                          the attention is right

Enters: a plain comparison, an isolated one, and further isolated ones in which some modules kept
their own values inside. Leaves: the isolated result without what has no effect.

To be right is not enough: a small mistake may be too small to show where it leaves the module. So
the reference is run with an error of the same size in the same place, drawn at random. Only where
that error shows clearly, or changes nothing at all, is a difference without one harmless.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence, Set
from dataclasses import replace

from ttrace.analysis.judge import FAILURES, Excuse, excuse
from ttrace.core.blame import Culprit, Phase
from ttrace.core.enclosure import Enclosure, enclosures_of, is_enclosed
from ttrace.core.finding import Note, Topic
from ttrace.core.ids import Kind, KindGroup, TensorId
from ttrace.core.results import STRONG, CheckResult, TensorResult, Verdict

_IN_A_MODULE = frozenset({Phase.MISSING, Phase.FORWARD, Phase.BACKWARD, Phase.WEIGHT_GRADIENT})
# Chosen: an error as large as the tensor itself stands for one that is not there or has no size.
_WHOLE = 1.0


def suspected(plain: CheckResult | None, isolated: CheckResult) -> tuple[Enclosure, ...]:
    """Modules that may compute the same in another way.

    Either the plain comparison fails inside and passes at everything that leaves the module, or the
    isolated one finds several wrong points in it: where the arrangement is made another, and where
    it is undone, both got values in that of the reference.
    """
    found = set() if plain is None else set(_right_outside(plain))
    places = [c for c in isolated.culprits if c.blame.phase in _IN_A_MODULE]
    called = _called(isolated)
    for culprit in places:
        if not any(_is_about(culprit, [enclosure]) for enclosure in found):
            found |= set(_with_several_points(culprit, places, called))
    found |= _in_other_layers(found, places)
    outermost = [e for e in found if not any(_is_within(e, other) for other in found)]
    return tuple(sorted(outermost, key=lambda enclosure: enclosure.module or ""))


def _in_other_layers(found: Set[Enclosure], places: Sequence[Culprit]) -> set[Enclosure]:
    """The same modules of other layers, in which an earlier mistake hides what is right.

    layers.0.attention was found, and layers.1.attention.wq is blamed: layers.1.attention, too.
    """
    patterns = {_pattern(enclosure.module) for enclosure in found if enclosure.module}
    blamed = {module for culprit in places for module in culprit.blame.modules}
    names = (name for module in blamed for name in (module, *_modules_around(module)))
    return {Enclosure(name) for name in names if name and _pattern(name) in patterns}


def _modules_around(module: str) -> list[str]:
    return [enclosure.module for enclosure in enclosures_of(module) if enclosure.module]


def probes(
    enclosures: Iterable[Enclosure], isolated: CheckResult, plain: CheckResult | None
) -> dict[TensorId, float]:
    """For every enclosure the tensor inside that is least wrong, and how wrong: relative error.

    By itself, where that is known; what the plain comparison finds right is not asked about.
    """
    own = {tensor.id: tensor for tensor in isolated.failures}
    wrong = isolated.failures if plain is None else plain.failures
    sizes = {tensor.id: _size(own.get(tensor.id, tensor)) for tensor in wrong}
    found: dict[TensorId, float] = {}
    for enclosure in enclosures:
        inside = [id_ for id_ in sizes if enclosure.holds(id_)]
        if inside:
            weakest = min(inside, key=sizes.__getitem__)
            found[weakest] = sizes[weakest]
    return found


def right(
    enclosures: Sequence[Enclosure], kept: CheckResult, isolated: CheckResult
) -> tuple[Enclosure, ...]:
    """Those from which nothing wrong leaves, though their modules kept their own values inside.

    Local gradients may be right as terms of a sum that nobody makes: the main gradient tells. One
    that is wrong in the isolated run as well is another mistake.
    """
    failed = [tensor.id for tensor in kept.failures]
    known = {tensor.id for tensor in isolated.failures}
    summed = [
        replace(id_, kind=Kind.GRAD)
        for id_ in failed
        if id_.kind is Kind.MAIN_GRAD and id_ not in known
    ]
    return tuple(e for e in enclosures if not any(map(e.leaves, (*failed, *summed))))


def harmless(enclosures: Sequence[Enclosure], probed: CheckResult) -> tuple[Enclosure, ...]:
    """Those in which an error of that size would have shown, or has no effect at all."""

    def decides(enclosure: Enclosure) -> bool:
        leaving = [tensor for tensor in probed.tensors if enclosure.leaves(tensor.id)]
        shows = any(
            tensor.verdict.is_failure and (tensor.ratio or math.inf) >= STRONG for tensor in leaving
        )
        equal = all(t.statistics is not None and t.statistics.equal for t in leaving)
        return bool(leaving) and (shows or equal)

    return tuple(filter(decides, enclosures))


def settled(
    isolated: CheckResult,
    kept: CheckResult,
    enclosures: Sequence[Enclosure],
    innocent: Sequence[Enclosure],
) -> CheckResult:
    """The isolated result, in which what is wrong inside of innocent enclosures is harmless.

    What leaves those is taken from the run in which all enclosures kept their own values.
    """
    leaving = {t.id: t for t in kept.tensors if any(e.leaves(t.id) for e in innocent)}
    merged = replace(
        isolated,
        tensors=tuple(leaving.get(tensor.id, tensor) for tensor in isolated.tensors),
        culprits=_still_blamed(isolated, kept, enclosures, innocent),
    )
    return excused(merged, innocent)


def excused(result: CheckResult, enclosures: Sequence[Enclosure]) -> CheckResult:
    """The same result, in which failures inside these enclosures are harmless, and said to be."""
    inside = [t for t in result.failures if is_enclosed(t.id, enclosures)]
    if not inside:
        return result
    ids = {tensor.id for tensor in inside}
    note = Note(
        topic=Topic.HARMLESS,
        count=len(ids),
        first=inside[0].id,
        modules=tuple(e.module for e in enclosures if any(map(e.holds, ids))),
    )
    return replace(
        result,
        tensors=excuse(result.tensors, (_harmless(id_) for id_ in ids))[0],
        culprits=tuple(
            culprit
            for culprit in result.culprits
            if not _is_about(culprit, enclosures) and not set(culprit.evidence) <= ids
        ),
        notes=(*result.notes, note),
    )


def _harmless(id_: TensorId) -> Excuse:
    return Excuse(id=id_, verdict=Verdict.HARMLESS, over=FAILURES)


def enclosures_in(isolated: CheckResult) -> tuple[Enclosure, ...]:
    """Those whose inside an isolated result calls harmless."""
    return tuple(
        Enclosure(module)
        for note in isolated.notes
        if note.topic is Topic.HARMLESS
        for module in note.modules
    )


def _still_blamed(
    isolated: CheckResult,
    kept: CheckResult,
    enclosures: Sequence[Enclosure],
    innocent: Sequence[Enclosure],
) -> tuple[Culprit, ...]:
    # layers.0.attention and layers.0.mlp kept their own values inside; attention is innocent.
    #     isolated    layers.0.attention.wq   layers.1.attention.wq   layers.0.mlp.up
    #     kept                                                        layers.0.mlp
    #     blamed      layers.0.mlp.up: wq of layer 0 is harmless, and so is the same of layer 1
    #     more        nothing: mlp has an inner place that is blamed by itself
    places = {_place(c) for c in isolated.culprits if _is_about(c, innocent)}
    named = {module for culprit in kept.culprits for module in culprit.blame.modules}
    guilty = [enclosure for enclosure in enclosures if enclosure.module in named]

    def is_settled(culprit: Culprit) -> bool:
        """The same places of other layers are wrong by what is harmless here, and what a module
        lacks inside shows in what it gives.
        """
        is_missing = culprit.blame.phase is Phase.MISSING and _is_about(culprit, guilty)
        return is_missing or _place(culprit) in places

    blamed = tuple(culprit for culprit in isolated.culprits if not is_settled(culprit))
    known = {culprit.blame for culprit in blamed}
    spoilt = [*guilty, *_blamed_inside((e for e in enclosures if e not in innocent), blamed)]

    def is_another(culprit: Culprit) -> bool:
        is_known = culprit.blame in known or _has_inner(culprit, blamed)
        modules = culprit.blame.modules
        return not is_known and not any(e.surrounds(m) for e in spoilt for m in modules)

    return (*blamed, *filter(is_another, kept.culprits))


def _blamed_inside(
    enclosures: Iterable[Enclosure], blamed: Sequence[Culprit]
) -> Iterable[Enclosure]:
    """What is blamed inside of one spoils the rest of it, where that was not given values."""
    return (e for e in enclosures if any(_is_about(culprit, [e]) for culprit in blamed))


def _right_outside(plain: CheckResult) -> Iterable[Enclosure]:
    """Of every failure the innermost enclosure that it does not leave.

    Of one in the forward pass, forward: a mistake elsewhere spoils gradients everywhere. The model
    and the step must be right as a whole.
    """
    failed = [tensor.id for tensor in plain.failures]
    known = [tensor.id for tensor in plain.tensors]
    called = _called(plain)
    seen: dict[tuple[Enclosure, bool], bool] = {}
    for id_ in failed:
        if not id_.kind.is_activation:
            continue
        for enclosure in enclosures_of(id_.module):
            if enclosure.module is not None and enclosure.module not in called:
                continue  # as a list of modules: what its modules give does not leave it
            is_forward = id_.kind.group is KindGroup.FORWARD and bool(enclosure.module)
            key = (enclosure, is_forward)
            if key not in seen:
                seen[key] = _is_right(enclosure, known, failed, is_forward=is_forward)
            if seen[key]:
                yield enclosure
                break


def _is_right(
    enclosure: Enclosure,
    known: Sequence[TensorId],
    failed: Sequence[TensorId],
    *,
    is_forward: bool,
) -> bool:
    def counts(id_: TensorId) -> bool:
        return enclosure.leaves(id_) and (not is_forward or id_.kind.group is KindGroup.FORWARD)

    return any(map(counts, known)) and not any(map(counts, failed))


def _with_several_points(
    culprit: Culprit, culprits: Sequence[Culprit], called: Set[str]
) -> Iterable[Enclosure]:
    """The innermost module, not the model, in which the culprit is not the only wrong point.

    What a module lacks inside is judged by what it gives.
    """
    if len(culprit.blame.modules) != 1:
        return
    module, is_missing = culprit.blame.modules[0], culprit.blame.phase is Phase.MISSING
    if len(_wrong_forward(culprit)) > 1 and not is_missing:
        yield Enclosure(module)
        return
    others = {m for c in culprits for m in c.blame.modules} - {module}
    # attention.wq and attention.wo are blamed:
    #     of wq, around it: attention.wq (alone in it), attention (wo as well)  ->  attention
    #     of wq, if it is missing: any module around it that gives something    ->  attention
    for enclosure in (Enclosure(module), *enclosures_of(module)):
        name = enclosure.module
        if name and name in called:
            is_around = is_missing and name != module
            if is_around or any(m == name or enclosure.surrounds(m) for m in others):
                yield enclosure
                return


def _wrong_forward(culprit: Culprit) -> set[tuple[str, Kind]]:
    """The points at which it is wrong before any gradient is."""
    forward = (id_ for id_ in culprit.evidence if not id_.kind.is_gradient_of_activation)
    return {(id_.module, id_.kind) for id_ in forward}


def _called(result: CheckResult) -> Set[str]:
    """Modules that give something of their own."""
    return {tensor.id.module for tensor in result.tensors if tensor.id.kind is Kind.OUTPUT}


def _is_within(inner: Enclosure, outer: Enclosure) -> bool:
    if inner.module is None:
        return False
    return outer.surrounds(inner.module)


def _is_about(culprit: Culprit, enclosures: Sequence[Enclosure]) -> bool:
    """Whether only the inside of enclosures, or how they are put together, is blamed."""
    modules = culprit.blame.modules
    return bool(modules) and all(
        any(module == e.module or e.surrounds(module) for e in enclosures) for module in modules
    )


def _has_inner(culprit: Culprit, others: Sequence[Culprit]) -> bool:
    """Whether a place inside what is blamed is blamed by itself."""
    return any(
        Enclosure(outer).surrounds(inner)
        for outer in culprit.blame.modules
        for other in others
        for inner in other.blame.modules
    )


def _place(culprit: Culprit) -> tuple[Set[str], Phase]:
    """The same for the same place of every layer."""
    return frozenset(map(_pattern, culprit.blame.modules)), culprit.blame.phase


def _pattern(module: str) -> str:
    return ".".join("*" if word.isdecimal() else word for word in module.split("."))


def _size(tensor: TensorResult) -> float:
    """The error in units of the tensor, at most as large as the tensor itself."""
    if tensor.verdict is not Verdict.MISMATCH or tensor.statistics is None:
        return _WHOLE
    return min(_WHOLE, tensor.statistics.relative_error)
