"""Refuses perturbed references that did not make the step of the reference.

Enters: a perturbed reference, measured against the reference. Leaves: a note where what differs is
no rounding: it started from other parameters (nothing was seeded), made other calls, was given
other data, or updated by another amount. Such a run would allow every error.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

from ttrace.analysis.sources import Source
from ttrace.core.finding import Note, Topic
from ttrace.core.ids import MASTER, Kind, TensorId
from ttrace.core.logical import LogicalTensor, Pair
from ttrace.core.statistics import Statistics
from ttrace.measure.accumulator import Accumulator
from ttrace.trace.blocks import PairReader
from ttrace.trace.dtypes import eps_of
from ttrace.trace.sketches import SketchReader, is_sketched, sketched_distance

# What every run of the same step has. Noise may decide which experts are called, not these.
_IN_EVERY_RUN = frozenset({Kind.PARAM, Kind.LOSS, Kind.GRAD_NORM, Kind.PARAM_AFTER})
_OF_ROOT = frozenset({Kind.INPUT, Kind.OUTPUT})

# Chosen: no optimizer makes an update twice as large of a gradient that noise moved by a tenth.
_SMALL_NOISE = 0.1
_OTHER_SIZE = 2.0


def refusal(
    reference: Source,
    perturbed: Source,
    pairs: Mapping[TensorId, Pair],
    measured: Mapping[TensorId, Statistics],
) -> Note | None:
    """Why a perturbed reference is no yardstick; None where it is one."""
    for topic, ids in _differences(reference, perturbed, pairs, measured):
        if ids:
            return Note(topic=topic, count=len(ids), first=min(ids))
    return None


def _differences(
    reference: Source,
    perturbed: Source,
    pairs: Mapping[TensorId, Pair],
    measured: Mapping[TensorId, Statistics],
) -> Iterator[tuple[Topic, list[TensorId]]]:
    """What two runs of one step have in common, and where these differ; the last reads bytes."""
    # The reference gets tokens [3, 1, 4], and with noise it gets
    #     [3, 1, 4]    the same
    #     [2, 7, 1]    OTHER_INPUTS; parameters (OTHER_START) and calls (OTHER_CALLS) come first
    yield (
        Topic.OTHER_START,
        [
            id_
            for id_, found in measured.items()
            if id_.kind is Kind.PARAM and id_.step == 0 and not found.equal
        ],
    )
    yield Topic.OTHER_CALLS, [id_ for id_, _ in _calls(reference) ^ _calls(perturbed)]
    dtypes = ((id_, expected.dtype, noisy.dtype) for id_, (expected, noisy) in pairs.items())
    yield Topic.OTHER_CALLS, [id_ for id_, one, other in dtypes if one != other]
    inputs = (id_ for id_, found in measured.items() if _is_other_input(id_, found, pairs))
    yield Topic.OTHER_INPUTS, list(inputs)
    sides = reference, perturbed
    updates = (id_ for id_ in pairs if _is_updated_otherwise(id_, *sides, pairs, measured))
    yield Topic.OTHER_UPDATES, list(updates)


def _is_other_input(id_: TensorId, found: Statistics, pairs: Mapping[TensorId, Pair]) -> bool:
    """Whether a model was given something that is no rounding of what the reference got.

    Rounding reaches inputs that a step makes itself, by a generator or a rollout.
    """
    if id_.module or id_.kind is not Kind.INPUT:
        return False
    is_whole = not eps_of(pairs[id_][0].dtype)
    share = found.unequal / max(1, found.count) if is_whole else found.relative_error
    return share > _SMALL_NOISE


def _calls(source: Source) -> set[tuple[TensorId, int]]:
    """What is recorded in every run, in which microbatch."""
    return {
        (record.id, record.microbatch)
        for record in source.trace.records.examples()
        if record.id.kind in _IN_EVERY_RUN or (not record.id.module and record.id.kind in _OF_ROOT)
    }


def _is_updated_otherwise(
    id_: TensorId,
    reference: Source,
    perturbed: Source,
    pairs: Mapping[TensorId, Pair],
    measured: Mapping[TensorId, Statistics],
) -> bool:
    """Whether an update has another size, though its gradient has not."""
    # The reference changed a parameter by 0.010; its gradient is the same to a tenth.
    #     by 0.011 with noise    the same step; by 0.019 as well
    #     by 0.021, or 0.004     another learning rate, or another optimizer
    before = replace(id_, kind=Kind.PARAM)
    if id_.kind is not Kind.PARAM_AFTER or id_.slot.endswith(MASTER) or before not in pairs:
        return False
    gradients = (measured.get(replace(id_, kind=kind)) for kind in (Kind.MAIN_GRAD, Kind.GRAD))
    gradient = next((found for found in gradients if found is not None), None)
    if gradient is None or gradient.relative_error > _SMALL_NOISE:
        return False
    (old, noisy_old), (new, noisy_new) = pairs[before], pairs[id_]
    if old.shape != new.shape:
        return False
    expected = distance(reference, old, new)
    found = distance(perturbed, noisy_old, noisy_new)
    if math.isnan(expected) or math.isnan(found):  # fingerprints that cannot be put together
        return False
    rounding = eps_of(new.dtype) * measured[id_].reference_norm
    is_other = not expected / _OTHER_SIZE <= found <= expected * _OTHER_SIZE
    return is_other and max(expected, found) > rounding


def distance(source: Source, before: LogicalTensor, after: LogicalTensor) -> float:
    """The norm of what a run changed."""
    if is_sketched(before, after):
        return sketched_distance(SketchReader(source.spans), before, after)
    whole = Accumulator()
    for block in PairReader(source.spans, source.spans).walk(before, after):
        whole.update(block.expected, block.found)
    return whole.result().error_norm
