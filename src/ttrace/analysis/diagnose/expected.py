"""Differences that the way of parallelising brings with it: dropout, statistics of each rank ...

Enters: culprits, and the classes of the modules they name. Leaves: the same culprits, where such a
difference is recognised with its name. They stay culprits: what to do about it is for people.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ttrace.core.blame import Culprit, Expected, Mistake, Phase, Reason, Stage
from ttrace.core.ids import Kind
from ttrace.core.record import ModuleInfo

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
    blame = culprit.blame
    if culprit.differences:
        return None  # a number that somebody set explains it
    for expected, pattern in _CLASSES.items():
        named = [classes.get(module, "").rpartition(".")[2] for module in blame.modules]
        if named and all(map(pattern.fullmatch, named)) and blame.phase in _OF_CLASS[expected]:
            return expected
    outputs = [id_ for id_ in culprit.evidence if id_.kind is Kind.OUTPUT]
    if outputs and all(id_.slot.partition(".")[0].endswith(_BALANCE) for id_ in outputs):
        return Expected.AUXILIARY_LOSS
    found = culprit.diagnosis
    rounded = found is not None and found.mistake == Mistake.ROUNDED_LOWER
    reduces = blame.phase in _REDUCTIONS or blame.stage is Stage.GRADIENT_REDUCTION
    if reduces and (rounded or culprit.reason is Reason.ROUNDED_LOWER):
        return Expected.COMPRESSED_REDUCTION
    return None
