"""Records: what one rank wrote about one tensor, and what it said about itself.

    Hyperparameter(owner=Owner.PARAMETER, name="lr", values=(5e-4,), step=0, owned=("head.weight",))
    Difference(owner=Owner.PARAMETER, name="lr", reference=(2.5e-4,), candidate=(5e-4,), ranks=(1,))
    Excerpt(file="model.py", line=91, function="FeedForward.forward", first=88, lines=("def ...",))

A record's layout is what its rank could know by itself (DTensor placements, say): it splits the
tensor of one microbatch. Where that microbatch sits in the global batch is found at alignment.

Hyperparameters are numbers that a step is made with: they belong to parameters (what an optimizer
updates them with), to modules (eps, p, base), or to the step (the norm to clip to, the scale of the
loss). Excerpts are lines of the user's program as they were when it ran. Values only: code is read
by capture/code.py, and chosen for a culprit by analysis/code.py.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any, ClassVar

from ttrace.core.door import key, to_dict
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
from ttrace.core.quantised import Quantising, Undone
from ttrace.core.quick import HashedOnce, make_quickly
from ttrace.errors import UsageError

CLIPPED_TO = "norm to clip to"
LOSS_SCALE = "loss scale"


class Owner(StrEnum):
    """What a hyperparameter belongs to."""

    PARAMETER = "parameter"
    MODULE = "module"
    STEP = "step"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hyperparameter:
    """One number, or several such as betas, from a step on; `owned` are names or module paths."""

    owner: Owner
    name: str
    values: tuple[float, ...]
    step: int
    owned: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A hyperparameter that the candidate has another value of."""

    owner: Owner
    name: str
    reference: tuple[float, ...]
    candidate: tuple[float, ...]
    owned: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()  # empty where it differs on all
    step: int = 0  # the first one


CLIPPING, UPDATE = "@clipping", "@update"  # no path of a module begins so


@dataclass(frozen=True, slots=True, kw_only=True)
class Excerpt:
    """A few lines around the one that matters."""

    file: str
    line: int
    function: str
    first: int  # the number of the first line that is shown
    lines: tuple[str, ...]
    is_own: bool = True  # of the user's program, not of an installed package

    @property
    def place(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Code:
    """What one rank knows of its program: excerpts, and by module which of them are about it."""

    excerpts: tuple[Excerpt, ...] = ()
    forwards: dict[str, int] = field(default_factory=dict)  # what the module itself runs
    calls: dict[str, tuple[int, ...]] = field(default_factory=dict)  # the nearest own line first

    def __post_init__(self) -> None:
        told = {*self.forwards.values(), *(n for numbers in self.calls.values() for n in numbers)}
        if any(not 0 <= number < len(self.excerpts) for number in told):
            raise UsageError(f"there are {len(self.excerpts)} excerpts, found numbers {told}")

    def forward_of(self, module: str) -> tuple[Excerpt, ...]:
        number = self.forwards.get(module)
        return () if number is None else (self.excerpts[number],)

    def calls_of(self, name: str) -> tuple[Excerpt, ...]:
        return tuple(self.excerpts[number] for number in self.calls.get(name, ()))


# Facts of a run, where a framework was told so; several dtypes have commas between.
COMPUTE_DTYPE = "compute dtype"
REDUCTION_DTYPE = "gradient reduction dtype"
SEGMENT = r"seg-[0-9]{5,9}\.safetensors"  # the name of a file with the bytes of tensors
Place = tuple[Size, Count]  # (my index, count)


@make_quickly
@dataclass(frozen=True, slots=True, kw_only=True)
class Location:
    """A span of bytes in one segment file of a rank, and its xxh3-64."""

    is_listed: ClassVar = True

    segment: Annotated[str, Matching(SEGMENT)]
    offset: Size
    size_bytes: Size
    xxh3: Digest


@dataclass(frozen=True, slots=True, kw_only=True)
class PayloadRef(HashedOnce):
    """Which payload reads the bytes of a record, and what it must know to do so (JSON values)."""

    is_listed: ClassVar = True

    name: Label
    parameters: Mapping[str, Any] = field(default_factory=dict)

    __hash__ = HashedOnce.__hash__

    def _key(self) -> tuple[object, ...]:
        return self.name, json.dumps(self.parameters, sort_keys=True)


@make_quickly
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

    def at(self, location: Location) -> Record:
        return self._with(self.rank, location, self.payload)

    def of_rank(self, rank: int, location: Location | None) -> Record:
        """The same tensor as another rank holds it."""
        return self._with(rank, location, self.payload)

    def stored_as(self, payload: PayloadRef) -> Record:
        return self._with(self.rank, self.location, payload)

    def _with(self, rank: int, location: Location | None, payload: PayloadRef | None) -> Record:
        """As `replace` makes it, in half of the time: this is done for every tensor."""
        return Record(
            id=self.id,
            rank=rank,
            sequence=self.sequence,
            dtype=self.dtype,
            shape=self.shape,
            microbatch=self.microbatch,
            recompute=self.recompute,
            layout=self.layout,
            batch_dim=self.batch_dim,
            origin=self.origin,
            same_as=self.same_as,
            location=location,
            payload=payload,
        )


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
        modules = [[m.path, m.class_name, m.source] for m in self.modules]
        return to_dict(self) | {"modules": modules}


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
    asked: int = 0  # steps that were to be recorded; 0 where nobody said
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
