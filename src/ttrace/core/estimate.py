"""Estimates: what recording and checking will cost, and what each number rests on.

Values only. A `LowHigh` has a low and a high end where something is not known; both are the same
where a number follows from what was recorded.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class LowHigh:
    """From the least that a number may be to the most."""

    low: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float]) -> LowHigh:
        found = list(values)
        return cls(min(found), max(found))

    def __add__(self, other: LowHigh) -> LowHigh:
        return LowHigh(self.low + other.low, self.high + other.high)

    def times(self, factor: float) -> LowHigh:
        return LowHigh(self.low * factor, self.high * factor)

    @property
    def is_exact(self) -> bool:
        return self.low == self.high


@dataclass(frozen=True, slots=True, kw_only=True)
class Volume:
    """What some ranks write: `value_bytes` are those of tensors before they were made smaller."""

    ranks: float = 0
    records: float = 0
    files: float = 0
    segment_bytes: float = 0
    journal_bytes: float = 0
    manifest_bytes: float = 0
    value_bytes: float = 0

    @property
    def size_bytes(self) -> float:
        """On disk."""
        return self.segment_bytes + self.journal_bytes + self.manifest_bytes

    def __add__(self, other: Volume) -> Volume:
        return Volume(**{f.name: getattr(self, f.name) + getattr(other, f.name) for f in _VOLUME})

    def times(self, factor: float) -> Volume:
        return Volume(**{f.name: getattr(self, f.name) * factor for f in _VOLUME})


_VOLUME = fields(Volume)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunVolume:
    """What one run writes, of all ranks together and of its largest; its logical tensors."""

    total: Volume
    largest: Volume
    tensors: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """What a machine takes, in seconds; of the form in which tensors are recorded."""

    device: str
    capture: str
    record_seconds: float  # of a run's own threads, for every record
    byte_seconds: float  # the same, for every byte of a tensor that is stored or made smaller
    read_seconds: float  # to read a record of a trace
    disk_rate: float  # bytes a second that one process writes

    def recording_seconds(self, volume: Volume) -> float:
        return self.record_seconds * volume.records + self.byte_seconds * volume.value_bytes


class Assumption(StrEnum):
    """What an estimate takes for granted."""

    LAYERS_ALIKE = "layers_alike"  # added layers record what those in the middle do
    LAYERS_DIFFER = "layers_differ"  # there is no middle, and the ends differ
    LAYERS_UNEVEN = "layers_uneven"  # those in the middle differ without a period
    SIZES = "sizes"  # dims of one size become another
    SIZES_LEFT = "sizes_left"  # dims whose size stays as it was recorded
    SPLIT_SEEN = "split_seen"  # an axis splits what it splits in the trace
    SPLIT_UNKNOWN = "split_unknown"  # an axis splits everything, or nothing
    DATA_AXIS = "data_axis"  # each of its ranks has as many samples as a recorded rank
    SAME_BATCH = "same_batch"  # the recorded batch is divided among its ranks
    PIPELINE = "pipeline"  # layers are divided evenly
    STEPS_ALIKE = "steps_alike"
    MICROBATCHES_ALIKE = "microbatches_alike"
    REFERENCE = "reference"  # how the reference is recorded
    OTHER_FORM = "other_form"  # the trace was recorded in another form than the one asked for
    OTHER_DEVICE = "other_device"  # rates are of another device than the trace
    TOO_MANY_LINES = "too_many_lines"  # this ttrace does not read so many


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumed:
    """One of them, with what fills its sentence."""

    about: Assumption
    what: str = ""
    count: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Of one comparison: the stated candidate, its reference and perturbed references."""

    trace: str
    capture: str
    axes: dict[str, int]
    ranks: int
    steps: int
    perturbed_runs: int
    workers: int
    recorded: Volume  # of the trace that all is computed from
    recorded_seconds: float  # that its last step spent on recording
    records: LowHigh  # of the candidate
    candidate_bytes: LowHigh
    rank_bytes: LowHigh  # of its largest rank
    journal_bytes: LowHigh
    files: LowHigh
    reference_bytes: LowHigh
    comparison_bytes: LowHigh  # of all runs
    recording_seconds: LowHigh  # of a step, on the largest rank
    writing_seconds: LowHigh  # from a disk for every rank to one for all
    check_seconds: LowHigh
    check_bytes: LowHigh  # of memory
    rates: Rates
    assumed: tuple[Assumed, ...]
