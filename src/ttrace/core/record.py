"""Records: what one rank wrote about one tensor, and what it said about itself.

A record's layout is what its rank could know by itself (DTensor placements, say): it splits the
tensor of one microbatch. Where that microbatch sits in the global batch is found at alignment.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, ClassVar

from ttrace.core.code import Code
from ttrace.core.hashed import HashedOnce
from ttrace.core.hyperparameter import Hyperparameter
from ttrace.core.ids import TensorId
from ttrace.core.layout import Layout
from ttrace.core.limits import (
    DIMS,
    MOST_MICROBATCHES,
    RANKS,
    Between,
    Count,
    Digest,
    Label,
    Matching,
    Rank,
    Size,
    Sizes,
)
from ttrace.core.plain import key
from ttrace.core.quantising import Quantising
from ttrace.core.undone import Undone
from ttrace.errors import UsageError

# Facts of a run, where a framework was told so; several dtypes have commas between.
COMPUTE_DTYPE = "compute dtype"
REDUCTION_DTYPE = "gradient reduction dtype"
SEGMENT = r"seg-[0-9]{5,9}\.safetensors"  # the name of a file with the bytes of tensors
Place = tuple[Size, Count]  # (my index, count)


@dataclass(frozen=True, slots=True, kw_only=True)
class Location:
    """A span of bytes in one segment file of a rank, and its xxh3-64."""

    is_listed: ClassVar = True

    segment: Annotated[str, Matching(SEGMENT)]
    offset: Size
    size_bytes: Size
    xxh3: Digest

    @classmethod
    def at(cls, segment: str, offset: int, size_bytes: int, xxh3: str) -> Location:
        """As by its name, in half the time; this is done for every tensor."""
        made = object.__new__(Location)
        _set_segment(made, segment)
        _set_offset(made, offset)
        _set_size_bytes(made, size_bytes)
        _set_xxh3(made, xxh3)
        return made


_set_segment, _set_offset, _set_size_bytes, _set_xxh3 = (
    getattr(Location, found.name).__set__ for found in fields(Location)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PayloadRef(HashedOnce):
    """Which payload reads the bytes of a record, and what it must know to do so (JSON values)."""

    is_listed: ClassVar = True

    name: Label
    parameters: Mapping[str, Any] = field(default_factory=dict)

    __hash__ = HashedOnce.__hash__

    def _key(self) -> tuple[object, ...]:
        return self.name, json.dumps(self.parameters, sort_keys=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One tensor as one rank held it.

    `same_as` names an earlier record of this rank with the very same tensor object: for a value the
    bytes are shared, for a gradient there is nothing to store (`location` is None). `batch_dim` is
    the dim of the samples where the framework says it, -1 where it says that there is none.
    `origin` is the rank whose samples these are, where tokens were sent to another rank.
    `payload` is None where the bytes are the elements as they stood in memory.
    """

    id: TensorId
    rank: int
    sequence: Size = field(metadata=key("seq"))
    dtype: Label
    shape: Sizes
    microbatch: Annotated[int, Between(0, MOST_MICROBATCHES - 1)] = field(
        default=0, metadata=key("mb")
    )
    recompute: bool = False
    layout: Layout | None = None
    batch_dim: Annotated[int, Between(-1, DIMS - 1)] | None = None
    origin: Rank | None = None
    same_as: TensorId | None = None
    location: Location | None = field(default=None, metadata=key("at"))
    payload: PayloadRef | None = None

    def to_json(self) -> dict[str, Any]:
        data: dict[str, Any] = {
            "id": str(self.id),
            "seq": self.sequence,
            "dtype": self.dtype,
            "shape": list(self.shape),
            "mb": self.microbatch,
        }
        if self.recompute:
            data["recompute"] = True
        if self.layout is not None:
            data["layout"] = self.layout.to_json()
        if self.batch_dim is not None:
            data["batch_dim"] = self.batch_dim
        if self.origin is not None:
            data["origin"] = self.origin
        if self.same_as is not None:
            data["same_as"] = str(self.same_as)
        if self.location is not None:
            where = self.location
            data["at"] = [where.segment, where.offset, where.size_bytes, where.xxh3]
        if self.payload is not None:
            data["payload"] = [self.payload.name, dict(self.payload.parameters)]
        return data

    def at(self, location: Location) -> Record:
        return self._with(self.rank, location, self.payload)

    def of_rank(self, rank: int, location: Location | None) -> Record:
        """The same tensor as another rank holds it."""
        return self._with(rank, location, self.payload)

    def stored_as(self, payload: PayloadRef) -> Record:
        return self._with(self.rank, self.location, payload)

    def _with(self, rank: int, location: Location | None, payload: PayloadRef | None) -> Record:
        """As `replace`, which takes seven times as long; this is done for every tensor."""
        made = object.__new__(Record)
        _set_id(made, self.id)
        _set_rank(made, rank)
        _set_sequence(made, self.sequence)
        _set_dtype(made, self.dtype)
        _set_shape(made, self.shape)
        _set_microbatch(made, self.microbatch)
        _set_recompute(made, self.recompute)
        _set_layout(made, self.layout)
        _set_batch_dim(made, self.batch_dim)
        _set_origin(made, self.origin)
        _set_same_as(made, self.same_as)
        _set_location(made, location)
        _set_payload(made, payload)
        return made


(
    _set_id,
    _set_rank,
    _set_sequence,
    _set_dtype,
    _set_shape,
    _set_microbatch,
    _set_recompute,
    _set_layout,
    _set_batch_dim,
    _set_origin,
    _set_same_as,
    _set_location,
    _set_payload,
) = (getattr(Record, found.name).__set__ for found in fields(Record))


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleInfo:
    """A module of the model as the report shows it."""

    is_listed: ClassVar = True

    path: Label
    class_name: Label = field(metadata=key("class"))
    source: Label  # "file.py:12", empty when Python does not know


@dataclass(frozen=True, slots=True, kw_only=True)
class RankInfo:
    """What a rank knows of itself when tracing starts: the manifest of its folder."""

    rank: Rank
    world_size: Annotated[int, Between(1, RANKS)]
    axes: dict[Label, Place] = field(default_factory=dict)
    batch: Place | None = None  # among data-parallel ranks, if known
    loss_parts: Count | None = None  # over how many ranks gradients are averaged, if known
    adapter: Label = "native"
    device: Label = "cpu"
    noise_seed: Size | None = field(default=None, metadata=key("perturbed"))  # of a perturbed run
    other_kernels: bool = False  # noise as between kernels of two devices
    modules: tuple[ModuleInfo, ...] = ()
    versions: dict[str, str] = field(default_factory=dict)
    facts: dict[str, str] = field(default_factory=dict)  # seed, commit, precision of matmul ...
    vocabulary: tuple[str, ...] = ()  # modules with a row for each token, padded as layouts need

    def __post_init__(self) -> None:
        places = {"rank": (self.rank, self.world_size), **self.axes}
        if self.batch is not None:
            places["batch"] = self.batch
        for name, (index, count) in places.items():
            if index >= count:
                raise UsageError(f"{name} {index} of {count}: they count from 0")

    def to_json(self) -> dict[str, Any]:
        return {
            "rank": self.rank,
            "world_size": self.world_size,
            "axes": {axis: list(place) for axis, place in self.axes.items()},
            "batch": None if self.batch is None else list(self.batch),
            "loss_parts": self.loss_parts,
            "adapter": self.adapter,
            "device": self.device,
            "perturbed": self.noise_seed,
            "other_kernels": self.other_kernels,
            "modules": [[m.path, m.class_name, m.source] for m in self.modules],
            "versions": self.versions,
            "facts": self.facts,
            "vocabulary": list(self.vocabulary),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMark:
    """A rank has recorded all of a step, and so many records since it began."""

    number: Size
    records: Size


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What a rank says when it ends well: its last journal line."""

    steps: Size
    hooks_expected: Size
    hooks_fired: Size
    unfired: tuple[str, ...] = ()  # ids whose gradient hook never fired
    never_called: tuple[str, ...] = ()  # module paths
    faults: tuple[str, ...] = ()  # exceptions inside hooks, kept away from the training run
    notes: tuple[str, ...] = ()
    updated_by_hand: bool = False  # by no optimizer, from gradients that nothing overwrites
    hyperparameters: tuple[Hyperparameter, ...] = ()
    asked: int = 0  # steps that were to be recorded; 0 where an older version recorded them
    is_full: bool = False  # whether there was no room on disk for more
    wrappers: tuple[str, ...] = ()  # classes around the model, or instead of those people wrote
    optimizers: tuple[str, ...] = ()  # classes of those that made a step
    seconds: float = 0.0  # that the last recorded step took
    recording_seconds: float = 0.0  # of which the run itself spent on recording it
    bytes_written: Size = 0  # by which that step made the trace larger
    waited_seconds: float = 0.0  # that the run waited in it for bytes to be written
    code: Code = field(default_factory=Code)
    quantising: tuple[Quantising, ...] | None = None  # modules that make codes, where one looked
    rounds_updates: bool = False  # by chance, as a perturbed run finds
    undone: tuple[Undone, ...] = ()  # quantisation, in a run that was asked for high precision
