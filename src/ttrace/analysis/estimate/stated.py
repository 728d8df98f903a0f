"""The stated run: what every rank of it records, from columns of the recorded one.

Enters: columns, and what is stated of model and mesh. Leaves: bytes and records of the run. Where
something is not known the caller asks twice, for the least and the most.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

from ttrace.analysis.estimate.axes import PIPELINE
from ttrace.analysis.estimate.columns import Column, PipePlace, Splits, Template
from ttrace.analysis.estimate.layers import Stack, spot_of
from ttrace.analysis.estimate.resized import resized
from ttrace.core.estimate import RunVolume, Volume
from ttrace.core.ids import Kind, TensorId
from ttrace.core.record import RankInfo, Record, Summary
from ttrace.trace.volume import PlannedRecord, volume_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Stated:
    """What is wanted. `recorded` and `axes` are sizes of axes, before and after."""

    recorded: Mapping[str, int]
    axes: Mapping[str, int]
    data: frozenset[str]
    stacks: Mapping[str, Stack]
    sizes: Mapping[int, int] = field(default_factory=dict)
    steps: int = 1
    microbatches: int | None = None
    samples: Fraction = Fraction(1)
    fingerprints: bool = False
    splits_unknown: bool = False  # what nobody knows is split, or else it is not

    @property
    def stages(self) -> int:
        return self.axes.get(PIPELINE, 1)

    @property
    def ranks(self) -> int:
        return math.prod(self.axes.values())

    def parts(self, splits: Splits, record: Record) -> dict[int, Fraction]:
        """Into how many times as many parts each dim is split."""
        found: dict[int, Fraction] = {}
        for axis, size in self.axes.items():
            ratio = Fraction(size, self.recorded.get(axis, 1))
            if axis == PIPELINE or ratio == 1 or not record.shape:
                continue
            dims = splits.get(axis, () if axis in self.data else None)
            if dims is None:
                longest = max(range(len(record.shape)), key=record.shape.__getitem__)
                dims = (longest,) if self.splits_unknown else ()
            for dim in dims:
                found[dim] = found.get(dim, Fraction(1)) * ratio
        return found

    def is_known(self, columns: Sequence[Column]) -> bool:
        """Whether `splits_unknown` makes no difference."""
        other = replace(self, splits_unknown=not self.splits_unknown)
        templates = (template for column in columns for template in column.steps[0])
        return all(
            self.parts(each.splits, each.record) == other.parts(each.splits, each.record)
            for each in templates
        )

    def stage_of(self, parent: str, index: int) -> int:
        """The pipeline stage of a layer: all lists together are divided evenly."""
        counts = {name: len(stack.sources) for name, stack in self.stacks.items()}
        before = sum(counts[name] for name in list(counts)[: list(counts).index(parent)])
        return (before + index) * self.stages // sum(counts.values())


def volume_of_run(columns: Sequence[Column], stated: Stated) -> RunVolume:
    """Of all ranks: each place in the mesh writes what recorded ones write on average."""
    each = stated.ranks / stated.stages / len(columns)
    total, largest, ids = Volume(), Volume(), set[TensorId]()
    for column in columns:
        for stage in range(stated.stages):
            info, summary = _described(column, stated, stage)
            steps = [_step(column, stated, stage, number) for number in range(stated.steps)]
            volume = volume_of(info, steps, summary, fingerprints=stated.fingerprints)
            total += volume.times(each)
            largest = max(largest, volume, key=lambda found: found.size_bytes)
            ids.update(planned.record.id for step in steps for planned in step)
    return RunVolume(total=total, largest=largest, tensors=len(ids))


def _step(column: Column, stated: Stated, stage: int, number: int) -> list[PlannedRecord]:
    """Later steps than those that were recorded are like the last of them."""
    templates = column.steps[min(number, len(column.steps) - 1)]
    made = max((template.record.microbatch for template in templates), default=0) + 1
    found: list[PlannedRecord] = []
    for template in templates:
        parts = stated.parts(template.splits, template.record)
        record = resized(template.record, stated.sizes, parts, stated.samples)
        for microbatch in _microbatches(record, made, stated.microbatches or made):
            for module, same_as in _copies(record, template, stated, stage):
                copy = replace(
                    record,
                    id=replace(record.id, module=module, step=number),
                    same_as=same_as,
                    microbatch=microbatch,
                    sequence=len(found) + 1,
                )
                found.append(template.planned._replace(record=copy))
    return found


def _microbatches(record: Record, made: int, wanted: int) -> Iterator[int]:
    """Those that a record stands for: the last one of what each has stands for all that follow."""
    of_each = record.id.kind in _OF_EACH_MICROBATCH
    if not of_each:
        yield record.microbatch
    elif record.microbatch < made - 1:
        yield from (record.microbatch,) if record.microbatch < wanted else ()
    else:
        yield from range(made - 1, wanted)


_OF_EACH_MICROBATCH = frozenset(
    {Kind.INPUT, Kind.OUTPUT, Kind.LOSS, Kind.GRAD_OUTPUT, Kind.GRAD_INPUT, Kind.GRAD}
)


def _copies(
    record: Record, template: Template, stated: Stated, stage: int
) -> Iterator[tuple[str, TensorId | None]]:
    """Module, and whose bytes it shares, of every layer that a record stands for on this stage."""
    spot, same_as = spot_of(record.id.module), record.same_as
    if spot is None:
        if template.stage is PipePlace.EVERY or stage == _end(template.stage, stated):
            yield record.id.module, same_as and _moved(same_as, stated, 0)
        return
    for index in stated.stacks[spot.parent].copies(spot.index):
        if stated.stage_of(spot.parent, index) == stage:
            yield spot.at(index), same_as and _moved(same_as, stated, index - spot.index)


def _moved(id_: TensorId, stated: Stated, by: int) -> TensorId:
    spot = spot_of(id_.module)
    if spot is None:
        return id_
    return replace(id_, module=spot.at(stated.stacks[spot.parent].shifted(spot.index, by)))


def _end(stage: PipePlace, stated: Stated) -> int:
    return 0 if stage is PipePlace.FIRST else stated.stages - 1


def _described(column: Column, stated: Stated, stage: int) -> tuple[RankInfo, Summary]:
    """Manifest and last line, which name modules."""
    names = {
        path: list(_paths(path, found, stated, stage)) for path, found in column.stages.items()
    }
    code = column.summary.code
    code = replace(
        code,
        forwards={new: n for path, n in code.forwards.items() for new in names.get(path, [path])},
        calls={new: n for path, n in code.calls.items() for new in names.get(path, [path])},
    )
    never = (new for path in column.summary.never_called for new in names.get(path, [path]))
    numbers = (
        replace(one, owned=tuple(new for name in one.owned for new in _owned(name, stated, stage)))
        for one in column.summary.hyperparameters
    )
    modules = (
        replace(module, path=new) for module in column.info.modules for new in names[module.path]
    )
    axes = {axis: (size - 1, size) for axis, size in stated.axes.items() if axis in stated.recorded}
    info = replace(
        column.info,
        rank=stated.ranks - 1,
        world_size=stated.ranks,
        axes={**dict.fromkeys(column.info.axes, (0, 1)), **axes},
        modules=tuple(modules),
    )
    summary = replace(
        column.summary, code=code, never_called=tuple(never), hyperparameters=tuple(numbers)
    )
    return info, summary


def _owned(name: str, stated: Stated, stage: int) -> Iterator[str]:
    """Modules, or parameters, which are called by their module; few are outside of all layers."""
    return _paths(name, PipePlace.EVERY, stated, stage)


def _paths(path: str, found: PipePlace, stated: Stated, stage: int) -> Iterator[str]:
    """The modules of this stage that a recorded one stands for."""
    spot = spot_of(path)
    if spot is not None:
        for index in stated.stacks[spot.parent].copies(spot.index):
            if stated.stage_of(spot.parent, index) == stage:
                yield spot.at(index)
    elif found is PipePlace.EVERY or stage == _end(found, stated):
        yield path
