"""What recording and checking a stated model and mesh will cost, from a small trace that was made.

Enters: a trace of the same training script (few layers, narrow, on few ranks), what is stated, and
rates of a machine. Leaves: an estimate, each number with what it rests on. What is not known is
asked twice: for the least and the most that it may be.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

from ttrace.analysis.estimate.axes import (
    PIPELINE,
    Places,
    is_data_name,
    places_of,
    stated_axes,
)
from ttrace.analysis.estimate.checking import (
    READ_SECONDS,
    CheckWork,
    check_memory,
    check_seconds,
)
from ttrace.analysis.estimate.columns import Column, columns_of
from ttrace.analysis.estimate.layers import Stack, asked_counts, spot_of, stacked
from ttrace.analysis.estimate.stated import Stated, volume_of_run
from ttrace.core.estimate import (
    Assumed,
    Assumption,
    Estimate,
    LowHigh,
    Rates,
    RunVolume,
)
from ttrace.core.limits import JOURNALS_BYTES
from ttrace.errors import CannotCompare
from ttrace.trace.fingerprint import is_fingerprint
from ttrace.trace.reader import Trace
from ttrace.trace.store import PathOrUrl

_FORMS = 2.0  # chosen: rates of one form say little of a run that was recorded in another
_CPU = "cpu"
_Looks = dict[str, dict[int, list[object]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """What is stated; what is left out is as in the trace."""

    capture: str = "full"
    axes: str | None = None
    ranks: int | None = None
    layers: str | None = None
    sizes: Mapping[int, int] = field(default_factory=dict)
    microbatches: int | None = None
    steps: int = 1
    perturbed_runs: int = 1
    workers: int = 1
    same_batch: bool = False  # the batch of all ranks stays, and not that of each

    @property
    def has_fingerprints(self) -> bool:
        return self.capture != "full"


def estimate(path: PathOrUrl, scenario: Scenario, rates: Rates) -> Estimate:
    """The cost of `ttrace diff` of the stated run, before it is made."""
    trace = Trace.open(path)
    if trace.missing_ranks or any(found.summary is None for found in trace.ranks.values()):
        raise CannotCompare(
            f"{path} is not whole: ranks {list(trace.missing_ranks)} are missing, or have not "
            "ended; an estimate needs a whole trace of a step"
        )
    places = places_of({rank: found.info for rank, found in trace.ranks.items()})
    columns = columns_of(trace, places)
    axes = stated_axes(places, scenario.axes, scenario.ranks)
    looks = _looks(columns)
    assumed = list(_assumed(trace, places, axes, scenario))
    devices = {found.info.device for found in trace.ranks.values()}
    if (devices == {_CPU}) != (rates.device == _CPU):
        assumed.append(Assumed(about=Assumption.OTHER_DEVICE, what=", ".join(sorted(devices))))
    stacks, about = _stacks(looks, scenario, high=True)
    ends = [_runs(columns, _stated(places, axes, scenario, stacks), scenario)]
    other = replace(
        _stated(places, axes, scenario, _stacks(looks, scenario, high=False)[0]),
        splits_unknown=True,
    )
    if other.stacks != stacks or not other.is_known(columns):
        ends.append(_runs(columns, other, scenario))
    assumed += about
    if _is_fingerprinted(trace) != scenario.has_fingerprints:
        assumed.append(Assumed(about=Assumption.OTHER_FORM, what=scenario.capture))
    if max(end.candidate.total.journal_bytes for end in ends) > JOURNALS_BYTES:
        assumed.append(Assumed(about=Assumption.TOO_MANY_LINES, count=JOURNALS_BYTES))
    seen = _recorded(columns, places, trace, looks)
    return _estimate(path, scenario, rates, trace, axes, ends, seen, assumed)


@dataclass(frozen=True, slots=True)
class _Runs:
    """One end of what may be: the candidate, and the reference."""

    candidate: RunVolume
    reference: RunVolume


def _stated(
    places: Places, axes: Mapping[str, int], scenario: Scenario, stacks: Mapping[str, Stack]
) -> Stated:
    return Stated(
        recorded=places.sizes,
        axes=axes,
        data=places.data | {axis for axis in axes if is_data_name(axis)},
        stacks=stacks,
        sizes=scenario.sizes,
        steps=scenario.steps,
        microbatches=scenario.microbatches,
        fingerprints=scenario.has_fingerprints,
    )


def _runs(columns: Sequence[Column], stated: Stated, scenario: Scenario) -> _Runs:
    """The reference has the axes of the trace, and all samples."""
    samples = Fraction(
        math.prod(stated.axes.get(axis, 1) for axis in stated.data),
        math.prod(stated.recorded.get(axis, 1) for axis in stated.data),
    )
    alone = replace(stated, axes=stated.recorded)
    if scenario.same_batch:
        stated = replace(stated, samples=1 / samples)
    else:
        alone = replace(alone, samples=samples)
    candidate = volume_of_run(columns, stated)
    return _Runs(candidate, candidate if alone == stated else volume_of_run(columns, alone))


def _recorded(columns: Sequence[Column], places: Places, trace: Trace, looks: _Looks) -> RunVolume:
    """The trace as it is, one step of it."""
    stacks = {
        parent: stacked(parent, layers, len(layers), high=True)[0]
        for parent, layers in looks.items()
    }
    stated = Stated(
        recorded=places.sizes,
        axes=places.sizes,
        data=places.data,
        stacks=stacks,
        fingerprints=_is_fingerprinted(trace),
    )
    return volume_of_run(columns, stated)


def _estimate(
    path: PathOrUrl,
    scenario: Scenario,
    rates: Rates,
    trace: Trace,
    axes: dict[str, int],
    ends: Sequence[_Runs],
    seen: RunVolume,
    assumed: list[Assumed],
) -> Estimate:
    spent = max(found.summary.recording_seconds for found in trace.ranks.values() if found.summary)
    total = LowHigh.of(end.candidate.total.size_bytes for end in ends)
    reference = LowHigh.of(end.reference.total.size_bytes for end in ends)
    largest = LowHigh.of(end.candidate.largest.size_bytes for end in ends)
    works = [_work(end, scenario.perturbed_runs) for end in ends]
    speed = rates.read_seconds / READ_SECONDS
    is_same_form = _is_fingerprinted(trace) == scenario.has_fingerprints
    return Estimate(
        trace=str(path),
        capture=scenario.capture,
        axes=axes,
        ranks=math.prod(axes.values()),
        steps=scenario.steps,
        perturbed_runs=scenario.perturbed_runs,
        workers=scenario.workers,
        recorded=seen.total,
        recorded_seconds=spent,
        records=LowHigh.of(end.candidate.total.records for end in ends),
        candidate_bytes=total,
        rank_bytes=largest,
        journal_bytes=LowHigh.of(end.candidate.total.journal_bytes for end in ends),
        files=LowHigh.of(end.candidate.total.files for end in ends),
        reference_bytes=reference,
        comparison_bytes=total + reference.times(1 + scenario.perturbed_runs),
        recording_seconds=_recording(ends, scenario, rates, seen, spent if is_same_form else None),
        writing_seconds=LowHigh(largest.low / rates.disk_rate, total.high / rates.disk_rate),
        check_seconds=_around(check_seconds(work, scenario.workers, speed) for work in works),
        check_bytes=_around(check_memory(work, scenario.workers) for work in works),
        rates=rates,
        assumed=tuple(dict.fromkeys(assumed)),
    )


def _recording(
    ends: Sequence[_Runs], scenario: Scenario, rates: Rates, seen: RunVolume, spent: float | None
) -> LowHigh:
    """Of a step: by the rates, and by what the recorded step spent, where that can be compared."""
    said = LowHigh.of(
        rates.recording_seconds(end.candidate.largest) / scenario.steps for end in ends
    )
    expected = rates.recording_seconds(seen.largest)
    if spent is None or not expected:
        return LowHigh(said.low / _FORMS, said.high * _FORMS)
    factor = spent / expected
    return LowHigh(said.low * min(1.0, factor), said.high * max(1.0, factor))


def _around(found: Iterable[LowHigh]) -> LowHigh:
    return LowHigh.of(end for bounds in found for end in (bounds.low, bounds.high))


def _work(end: _Runs, perturbed_runs: int) -> CheckWork:
    """The candidate and every perturbed reference are measured against the reference."""
    candidate, reference = end.candidate.total, end.reference.total
    return CheckWork(
        records=candidate.records + reference.records * (1 + perturbed_runs),
        pairs=end.candidate.tensors * (1 + perturbed_runs),
        stored_bytes=candidate.segment_bytes + reference.segment_bytes * (1 + 2 * perturbed_runs),
    )


def _looks(columns: Sequence[Column]) -> _Looks:
    """What each layer of each list records, by which those that are alike are told."""
    found: _Looks = {}
    for template in columns[0].steps[0]:
        record = template.record
        spot = spot_of(record.id.module)
        if spot is not None:
            look = spot.rest, record.id.kind, record.id.slot, record.id.call, record.microbatch
            facts = record.dtype, record.shape, template.planned.is_stored
            found.setdefault(spot.parent, {}).setdefault(spot.index, []).append((*look, *facts))
    return found


def _stacks(
    looks: _Looks, scenario: Scenario, *, high: bool
) -> tuple[dict[str, Stack], list[Assumed]]:
    counts = asked_counts(scenario.layers, {parent: len(found) for parent, found in looks.items()})
    made = {
        parent: stacked(parent, found, counts[parent], high=high) for parent, found in looks.items()
    }
    stacks = {parent: stack for parent, (stack, _) in made.items()}
    return stacks, [assumed for _, assumed in made.values() if assumed is not None]


def _assumed(
    trace: Trace, places: Places, axes: Mapping[str, int], scenario: Scenario
) -> Iterator[Assumed]:
    for axis, size in axes.items():
        if size == places.sizes.get(axis, 1):
            continue
        if axis == PIPELINE:
            yield Assumed(about=Assumption.PIPELINE, what=axis, count=size)
        elif axis in places.sizes:
            yield Assumed(about=Assumption.SPLIT_SEEN, what=axis, count=places.sizes[axis])
        elif not is_data_name(axis):
            yield Assumed(about=Assumption.SPLIT_UNKNOWN, what=axis, count=size)
        if axis in places.data or is_data_name(axis):
            about = Assumption.SAME_BATCH if scenario.same_batch else Assumption.DATA_AXIS
            yield Assumed(about=about, what=axis, count=size)
    yield from _about_sizes(trace, scenario.sizes)
    if scenario.steps > len(trace.steps):
        yield Assumed(about=Assumption.STEPS_ALIKE, count=len(trace.steps))
    if scenario.microbatches is not None:
        yield Assumed(about=Assumption.MICROBATCHES_ALIKE, count=scenario.microbatches)
    yield Assumed(about=Assumption.REFERENCE, count=len(trace.ranks))


def _about_sizes(trace: Trace, sizes: Mapping[int, int]) -> Iterator[Assumed]:
    """Which sizes there are besides: whoever forgets one shall see it."""
    if not sizes:
        return
    counted: dict[int, int] = {}
    for records in trace.by_id().values():
        shape = records[0].shape if records[0].layout is None else records[0].layout.shape
        for size in {size for size in shape if size > 1}:
            counted[size] = counted.get(size, 0) + 1
    told = ", ".join(f"{old} to {new}" for old, new in sizes.items())
    yield Assumed(about=Assumption.SIZES, what=told)
    left = sorted(counted.keys() - sizes.keys())
    if left:
        text = ", ".join(f"{size} (of {counted[size]})" for size in left)
        yield Assumed(about=Assumption.SIZES_LEFT, what=text)


def _is_fingerprinted(trace: Trace) -> bool:
    return any(is_fingerprint(record) for rank in trace.ranks.values() for record in rank.records)
