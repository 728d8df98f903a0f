"""Columns: what one rank would record if it had the whole pipeline, from a trace that was made.

Enters: a trace. Leaves: for every place in the mesh, the pipeline apart, its records in their
order, with what each axis splits of them and where in a pipeline they belong.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto

from ttrace.analysis.estimate.axes import PIPELINE, Places, split_dims
from ttrace.analysis.estimate.layers import spot_of
from ttrace.core.ids import Kind, TensorId
from ttrace.core.record import RankInfo, Record, Summary
from ttrace.trace.fingerprint import is_fingerprint
from ttrace.trace.reader import RankTrace, Trace
from ttrace.trace.volume import PlannedRecord

Splits = dict[str, tuple[int, ...] | None]
_Key = tuple[TensorId, int]


class PipePlace(Enum):
    """Where in a pipeline something belongs."""

    OF_LAYER = auto()
    FIRST = auto()
    LAST = auto()
    EVERY = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """One record of the trace, without its step."""

    planned: PlannedRecord
    splits: Splits
    stage: PipePlace

    @property
    def record(self) -> Record:
        return self.planned.record


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """All stages of a pipeline as one rank; `steps` has the records of each recorded step."""

    info: RankInfo
    summary: Summary
    stages: dict[str, PipePlace]  # of every module
    steps: tuple[tuple[Template, ...], ...]


def columns_of(trace: Trace, places: Places) -> list[Column]:
    """One for each place in the mesh beside the pipeline."""
    found: dict[tuple[int, ...], list[int]] = {}
    for rank in sorted(trace.ranks, key=places.stage):
        found.setdefault(places.beside(rank), []).append(rank)
    by_key = {
        rank: {(record.id, record.microbatch): record for record in each.records}
        for rank, each in trace.ranks.items()
    }
    return [_column(trace, places, ranks, by_key) for ranks in found.values()]


def _column(
    trace: Trace, places: Places, ranks: Sequence[int], by_key: dict[int, dict[_Key, Record]]
) -> Column:
    parts = [trace.ranks[rank] for rank in ranks]
    modules = {m.path: m for part in parts for m in part.info.modules}
    held = [{m.path for m in part.info.modules} for part in parts]
    stages = _stages(list(modules), held)
    count: dict[_Key, int] = {}
    for rank in ranks:
        for key in by_key[rank]:
            count[key] = count.get(key, 0) + 1
    steps: dict[int, list[Template]] = {}
    known: set[_Key] = set()
    for rank, part in zip(ranks, parts, strict=True):
        others = {axis: places.neighbour(rank, axis) for axis in places.sizes if axis != PIPELINE}
        for planned in _planned(part, trace.roots):
            record = planned.record
            key = record.id, record.microbatch
            if key in known:
                continue
            known.add(key)
            splits: Splits = {}
            for axis, other in others.items():
                beside = None if other is None else by_key[other].get(key)
                splits[axis] = split_dims(record, beside, is_data=axis in places.data)
            stage = _stage(record, stages, is_on_all=1 < count[key] == len(ranks))
            template = Template(planned=planned, splits=splits, stage=stage)
            steps.setdefault(record.id.step, []).append(template)
    first = parts[0]
    return Column(
        info=replace(first.info, modules=tuple(modules.values())),
        summary=first.summary or Summary(steps=1, hooks_expected=0, hooks_fired=0),
        stages=stages,
        steps=tuple(tuple(templates) for _, templates in sorted(steps.items())),
    )


def _planned(part: RankTrace, roots: Iterable[str]) -> Iterator[PlannedRecord]:
    """Records, and which of them have bytes of their own."""
    seen: set[tuple[str, int]] = set()
    samples = frozenset(roots)
    for record in part.records:
        at = record.location
        is_stored = at is not None and (at.segment, at.offset) not in seen
        if at is not None:
            seen.add((at.segment, at.offset))
        is_sample = record.id.kind is Kind.INPUT and record.id.module in samples
        is_whole = is_sample and not is_fingerprint(record)  # as recorders keep what models get
        plain = replace(record, payload=None) if is_fingerprint(record) else record
        yield PlannedRecord(plain, is_stored, is_whole)


def _stages(paths: Sequence[str], held: Sequence[set[str]]) -> dict[str, PipePlace]:
    """Of every module: by the recorded stages that have it, or else by its place in the model."""
    layers = [number for number, path in enumerate(paths) if spot_of(path) is not None]
    first_layer = layers[0] if layers else 0
    found: dict[str, PipePlace] = {}
    for number, path in enumerate(paths):
        having = [stage for stage, inside in enumerate(held) if path in inside]
        if spot_of(path) is not None:
            found[path] = PipePlace.OF_LAYER
        elif _holds_layers(path, paths) or 1 < len(having) == len(held):
            found[path] = PipePlace.EVERY
        elif len(held) > 1:
            found[path] = PipePlace.FIRST if having == [0] else PipePlace.LAST
        else:
            found[path] = PipePlace.FIRST if number < first_layer else PipePlace.LAST
    return found


def _holds_layers(path: str, paths: Sequence[str]) -> bool:
    inside = f"{path}." if path else ""
    return any(other.startswith(inside) and spot_of(other) is not None for other in paths)


def _stage(record: Record, stages: dict[str, PipePlace], *, is_on_all: bool) -> PipePlace:
    if is_on_all or record.id.kind is Kind.GRAD_NORM:
        return PipePlace.EVERY
    stage = stages.get(record.id.module, PipePlace.FIRST)
    if stage is not PipePlace.EVERY:
        return stage
    # Of the model as a whole: samples enter at the first stage, the loss leaves the last.
    is_entry = record.id.kind in (Kind.INPUT, Kind.GRAD_INPUT, Kind.PARAM)
    return PipePlace.FIRST if is_entry else PipePlace.LAST
