"""Code for a culprit: the user's own lines that are to be looked at, then those of a framework.

    a class of the user's           the beginning of its forward
    what it makes for a child       the line that calls the child
    a class of a framework's        the line of the nearest class of the user's that calls it
    a stage of the step             the line of the training loop that makes it

Enters: culprits, and the code of the candidate's ranks. Leaves: the same culprits with excerpts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ttrace.core.blame import Culprit, Stage
from ttrace.core.code import CLIPPING, UPDATE, Code, Excerpt
from ttrace.core.ids import TensorId

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
