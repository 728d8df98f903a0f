"""Numbers in which two runs differ, and the culprits that they explain.

Enters: what both traces say of hyperparameters, and culprits. Leaves: the culprits with the
differences that belong to their place, and the differences that explain nothing. They are compared
by the parameter or module that they belong to: groups of an optimizer follow the layout.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from ttrace.core.blame import Blame, Culprit, Phase, Reason, Stage
from ttrace.core.ids import MASTER, Kind, TensorId
from ttrace.core.record import CLIPPED_TO, LOSS_SCALE, Difference, Hyperparameter, Owner
from ttrace.core.results import TensorResult
from ttrace.trace.reader import Trace

_Key = tuple[int, Owner, str, str]  # step, of what, the name of the number, the name of its owner
_Values = tuple[float, ...]
_STAGES = {
    CLIPPED_TO: (Stage.GRADIENT_CLIPPING,),
    LOSS_SCALE: (Stage.LOSS, Stage.BACKWARD, Stage.GRADIENT_ACCUMULATION, Stage.GRADIENT_REDUCTION),
}
_STEP = Blame.at(Stage.OPTIMIZER_STEP, Phase.UPDATE)
_SHOWN = 3  # chosen: parameters that one number moved wrongly show the same


def differences(reference: Trace, candidate: Trace) -> tuple[Difference, ...]:
    """Every number that a rank of the candidate has another value of, at the first such step."""
    # lr of wq is 0.1 in the reference; rank 0 of 2 has 0.2 from step 1 on, for wo as well:
    #     Difference(name="lr", reference=(0.1,), candidate=(0.2,), owned=("wq", "wo"), ranks=(0,),
    #                step=1)            of all ranks it would be ranks=()
    expected = {key: values for _, found in _of_ranks(reference) for key, values in found.items()}
    wrong: dict[tuple[Owner, str, _Values, _Values], dict[str, list[tuple[int, int]]]] = {}
    for rank, found in _of_ranks(candidate):
        for (step, owner, name, owned), values in found.items():
            known = expected.get((step, owner, name, owned))
            if known is not None and known != values:
                places = wrong.setdefault((owner, name, known, values), {})
                places.setdefault(owned, []).append((step, rank))
    return tuple(
        Difference(
            owner=owner,
            name=name,
            reference=known,
            candidate=values,
            owned=tuple(owned),
            ranks=() if len(ranks) == candidate.world_size else ranks,
            step=min(step for places in owned.values() for step, _ in places),
        )
        for (owner, name, known, values), owned in wrong.items()
        if (ranks := tuple(sorted({rank for places in owned.values() for _, rank in places})))
    )


def explained(
    culprits: Sequence[Culprit],
    found: Sequence[Difference],
    tensors: Sequence[TensorResult],
) -> tuple[tuple[Culprit, ...], tuple[Difference, ...]]:
    """The culprits with the differences of their place, and those that explain none of them."""
    merged = _one_update(culprits, found, tensors)
    explaining = {culprit: [d for d in found if _explains(d, culprit)] for culprit in merged}
    used = {difference for each in explaining.values() for difference in each}
    attached = tuple(
        replace(culprit, differences=tuple(_at(culprit.blame, each) for each in differing))
        for culprit, differing in explaining.items()
    )
    return attached, tuple(difference for difference in found if difference not in used)


def _of_ranks(trace: Trace) -> Iterator[tuple[int, dict[_Key, _Values]]]:
    """The value at every step that was recorded; what changes is told when it does."""
    for rank, found in sorted(trace.ranks.items()):
        told = () if found.summary is None else found.summary.hyperparameters
        yield rank, dict(_at_steps(told, trace.steps))


def _at_steps(
    told: Iterable[Hyperparameter], steps: Sequence[int]
) -> Iterator[tuple[_Key, _Values]]:
    for each in sorted(told, key=lambda each: each.step):
        for step in steps:
            if step >= each.step:
                for owned in each.owned:
                    yield (step, each.owner, each.name, owned), each.values


def _one_update(
    culprits: Sequence[Culprit], found: Sequence[Difference], tensors: Sequence[TensorResult]
) -> tuple[Culprit, ...]:
    """Updates of modules that differ in numbers of the optimizer are one culprit: its step."""
    owned = {name for each in found if each.owner is Owner.PARAMETER for name in each.owned}
    updates = [
        culprit
        for culprit in culprits
        if culprit.reason is Reason.NEW_PARAMETER
        and all(_parameter(id_) in owned for id_ in culprit.evidence)
    ]
    if not updates:
        return tuple(culprits)
    # The learning rate of wq differs; step 0 blames all of the step, step 1 two modules:
    #     update of layers.0.wq, update of layers.1.wq, output of head, optimizer step
    #     becomes  optimizer step (steps 0 and 1), output of head
    updates += [culprit for culprit in culprits if culprit.blame == _STEP]  # of another step
    first = min(map(culprits.index, updates))
    others = [culprit for culprit in culprits if culprit not in updates]
    return (*others[:first], _merge_updates(updates, tensors), *others[first:])


def _merge_updates(updates: Sequence[Culprit], tensors: Sequence[TensorResult]) -> Culprit:
    evidence = [id_ for culprit in updates for id_ in culprit.evidence]
    steps = {id_.step for id_ in evidence}
    of_steps = [t for t in tensors if t.id.kind is Kind.PARAM_AFTER and t.id.step in steps]
    return Culprit(
        blame=_STEP,
        reason=Reason.ALL_NEW_PARAMETERS,
        evidence=tuple(evidence[:_SHOWN]),
        count=sum(tensor.verdict.is_failure for tensor in of_steps),
        total=len(of_steps),
        steps=tuple(sorted({step for culprit in updates for step in culprit.steps})),
    )


def _parameter(id_: TensorId) -> str:
    return f"{id_.module}.{id_.slot.removesuffix(MASTER)}".lstrip(".")


def _at(blame: Blame, difference: Difference) -> Difference:
    """The difference, of the modules that are blamed."""
    if difference.owner is not Owner.MODULE:
        return difference
    return replace(difference, owned=tuple(m for m in difference.owned if m in blame.modules))


def _explains(difference: Difference, culprit: Culprit) -> bool:
    blame = culprit.blame
    if difference.owner is Owner.STEP:
        return blame.stage in _STAGES.get(difference.name, ())
    if difference.owner is Owner.PARAMETER:
        is_update = blame.stage is Stage.OPTIMIZER_STEP or blame.phase is Phase.UPDATE
        owned = set(difference.owned)
        return is_update and any(_state_of(id_, owned) for id_ in culprit.evidence)
    inside = (Phase.FORWARD, Phase.BACKWARD, Phase.WEIGHT_GRADIENT, Phase.BUFFER)
    return blame.phase in inside and any(module in difference.owned for module in blame.modules)


def _state_of(id_: TensorId, owned: set[str]) -> bool:
    """Whether a new parameter, or a part of its state, belongs to one of these."""
    name = _parameter(id_)
    return name in owned or any(name.startswith(f"{each}.") for each in owned)
