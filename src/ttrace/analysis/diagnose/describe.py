"""Culprits with all that is known of them: the kind of mistake, what is expected, their code.

Differences that the way of parallelising brings with it (dropout, statistics of each rank ...) are
recognised by the classes of modules. They stay culprits: what to do about them is for people.

Code is the user's own lines that are to be looked at, then those of a framework:

    a class of the user's           the beginning of its forward
    what it makes for a child       the line that calls the child
    a class of a framework's        the line of the nearest class of the user's that calls it
    a stage of the step             the line of the training loop that makes it
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ttrace.analysis.diagnose.examine import with_diagnoses
from ttrace.analysis.recipes import diagnose_recipes
from ttrace.analysis.sources import Sources
from ttrace.core.blame import Blame, Culprit, Expected, Mistake, Phase, Reason, Stage
from ttrace.core.evidence import Detail
from ttrace.core.ids import Kind, TensorId
from ttrace.core.record import CLIPPING, UPDATE, Code, Excerpt, ModuleInfo


def described(
    culprits: Sequence[Culprit], details: Sequence[Detail], sources: Sources
) -> tuple[Culprit, ...]:
    """The same culprits, in the same order."""
    candidate = sources.candidate
    diagnosed = with_diagnoses(culprits, details)
    diagnosed = diagnose_recipes(diagnosed, *sources.codes)
    wrong = {detail.id: detail.wrong_ranks for detail in details}
    return with_code(with_expected(diagnosed, candidate.modules), candidate.code, wrong)


_CLASSES = {
    Expected.DROPOUT: re.compile(r"(Feature)?(Alpha)?Dropout[123]?d?"),
    Expected.BATCH_STATISTICS: re.compile(r"(Lazy)?BatchNorm[123]d"),
}
_OF_CLASS = {
    Expected.DROPOUT: (Phase.FORWARD, Phase.BACKWARD),
    Expected.BATCH_STATISTICS: (
        *(Phase.FORWARD, Phase.BACKWARD, Phase.WEIGHT_GRADIENT),
        *(Phase.GRADIENT_REDUCTION, Phase.BUFFER),
    ),
}
_BALANCE = "load_balancing_loss"  # by what Megatron-Core's names of them end
_REDUCTIONS = (Phase.GRADIENT_REDUCTION, Phase.MAIN_GRADIENT)


def with_expected(
    culprits: Sequence[Culprit], modules: Sequence[ModuleInfo]
) -> tuple[Culprit, ...]:
    """Each culprit with the difference that is expected of it, where one is."""
    classes = {module.path: module.class_name for module in modules}
    return tuple(replace(culprit, expected=_expected(culprit, classes)) for culprit in culprits)


def _expected(culprit: Culprit, classes: Mapping[str, str]) -> Expected | None:
    if culprit.differences:
        return None  # a number that somebody set explains it
    if (of_class := _expected_of_classes(culprit.blame, classes)) is not None:
        return of_class
    outputs = [id_ for id_ in culprit.evidence if id_.kind is Kind.OUTPUT]
    if outputs and all(id_.slot.partition(".")[0].endswith(_BALANCE) for id_ in outputs):
        return Expected.AUXILIARY_LOSS
    return Expected.COMPRESSED_REDUCTION if _is_rounded_reduction(culprit) else None


def _expected_of_classes(blame: Blame, classes: Mapping[str, str]) -> Expected | None:
    """What modules of these classes do otherwise in parallel."""
    named = [classes.get(module, "").rpartition(".")[2] for module in blame.modules]
    for expected, pattern in _CLASSES.items():
        if named and all(map(pattern.fullmatch, named)) and blame.phase in _OF_CLASS[expected]:
            return expected
    return None


def _is_rounded_reduction(culprit: Culprit) -> bool:
    blame, found = culprit.blame, culprit.diagnosis
    is_rounded = found is not None and found.mistake == Mistake.ROUNDED_LOWER
    reduces = blame.phase in _REDUCTIONS or blame.stage is Stage.GRADIENT_REDUCTION
    return reduces and (is_rounded or culprit.reason is Reason.ROUNDED_LOWER)


_MODEL = ""
_STAGES = {
    Stage.MODEL_INPUT: _MODEL,
    Stage.INITIAL_PARAMETERS: _MODEL,
    Stage.LOSS: _MODEL,
    Stage.BACKWARD: _MODEL,
    Stage.GRADIENT_ACCUMULATION: _MODEL,
    Stage.GRADIENT_REDUCTION: UPDATE,
    Stage.GRADIENT_CLIPPING: CLIPPING,
    Stage.OPTIMIZER_STEP: UPDATE,
}


def with_code(
    culprits: Sequence[Culprit],
    ranks: Mapping[int, Code],
    wrong: Mapping[TensorId, Sequence[int]],
) -> tuple[Culprit, ...]:
    """Each culprit with its code, of the first rank that knows it: stages of a pipeline differ.

    Ranks that are wrong come before others, since each may run something else.
    """

    def shown(culprit: Culprit) -> Culprit:
        first = [rank for id_ in culprit.evidence[:1] for rank in wrong.get(id_, ())]
        order = dict.fromkeys((*first, *ranks))
        found = (_excerpts(culprit, ranks[rank]) for rank in order if rank in ranks)
        return replace(culprit, code=next(filter(None, found), ()))

    return tuple(map(shown, culprits))


def _excerpts(culprit: Culprit, code: Code) -> tuple[Excerpt, ...]:
    blame = culprit.blame
    if blame.stage is not None:
        calls = code.calls_of(_STAGES[blame.stage])
        return _own_first((), calls or code.calls_of(_MODEL))
    module = blame.modules[0]
    first = culprit.evidence[0].module if culprit.evidence else module
    is_child = first != module and (not module or first.startswith(f"{module}."))
    if is_child and code.calls_of(first):
        return _own_first((), (*code.calls_of(first), *code.forward_of(module)))
    return _own_first(code.forward_of(module), code.calls_of(module))


def _own_first(forward: Sequence[Excerpt], calls: Sequence[Excerpt]) -> tuple[Excerpt, ...]:
    """One of the user's and one of a framework's, or whichever there is.

    What the user's class runs says more than who calls it; of a framework's it is the other way.
    """
    own = [excerpt for excerpt in (*forward, *calls) if excerpt.is_own]
    others = [excerpt for excerpt in (*calls, *forward) if not excerpt.is_own]
    return (*own[:1], *others[:1])
