"""Records: what one rank wrote about one tensor, and what it said about itself.

A record's layout is what its rank could know by itself (DTensor placements, say): it splits the
tensor of one microbatch. Where that microbatch sits in the global batch is found at alignment.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ttrace.core.code import Code
from ttrace.core.hyperparameter import Hyperparameter
from ttrace.core.ids import TensorId
from ttrace.core.layout import Layout
from ttrace.core.plain import key


@dataclass(frozen=True, slots=True, kw_only=True)
class Location:
    """A span of bytes in one segment file of a rank, and its xxh3-64."""

    segment: str
    offset: int
    size_bytes: int
    xxh3: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PayloadRef:
    """Which payload reads the bytes of a record, and what it must know to do so (JSON values)."""

    name: str
    parameters: Mapping[str, Any] = field(default_factory=dict, hash=False)


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
    sequence: int
    dtype: str
    shape: tuple[int, ...]
    microbatch: int = 0
    recompute: bool = False
    layout: Layout | None = None
    batch_dim: int | None = None
    origin: int | None = None
    same_as: TensorId | None = None
    location: Location | None = None
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

    @classmethod
    def from_json(cls, data: dict[str, Any], *, rank: int) -> Record:
        layout, same_as, where = data.get("layout"), data.get("same_as"), data.get("at")
        payload = data.get("payload")
        return cls(
            id=TensorId.parse(data["id"]),
            rank=rank,
            sequence=data["seq"],
            dtype=data["dtype"],
            shape=tuple(data["shape"]),
            microbatch=data["mb"],
            recompute=data.get("recompute", False),
            layout=None if layout is None else Layout.from_json(layout),
            batch_dim=data.get("batch_dim"),
            origin=data.get("origin"),
            same_as=None if same_as is None else TensorId.parse(same_as),
            location=None
            if where is None
            else Location(segment=where[0], offset=where[1], size_bytes=where[2], xxh3=where[3]),
            payload=None
            if payload is None
            else PayloadRef(name=str(payload[0]), parameters=dict(payload[1])),
        )

    def at(self, location: Location) -> Record:
        return replace(self, location=location)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleInfo:
    """A module of the model as the report shows it."""

    path: str
    class_name: str = field(metadata=key("class"))
    source: str  # "file.py:12", empty when Python does not know


_ONCE_VERSIONS = ("torch seed", "git commit")  # where they stood before manifests had facts


@dataclass(frozen=True, slots=True, kw_only=True)
class RankInfo:
    """What a rank knows of itself when tracing starts: the manifest of its folder."""

    rank: int
    world_size: int
    axes: dict[str, tuple[int, int]] = field(default_factory=dict)  # axis -> (my index, size)
    batch: tuple[int, int] | None = None  # (my index, count) among data-parallel ranks, if known
    loss_parts: int | None = None  # over how many ranks gradients are averaged, if known
    adapter: str = "native"
    device: str = "cpu"
    noise_seed: int | None = None  # of the rounding noise in a perturbed run
    other_kernels: bool = False  # noise as between kernels of two devices
    modules: tuple[ModuleInfo, ...] = ()
    versions: dict[str, str] = field(default_factory=dict)
    facts: dict[str, str] = field(default_factory=dict)  # seed, commit, precision of matmul ...
    vocabulary: tuple[str, ...] = ()  # modules with a row for each token, padded as layouts need

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

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> RankInfo:
        versions, facts = data["versions"], data.get("facts")
        if facts is None:
            facts = {name: versions[name] for name in _ONCE_VERSIONS if name in versions}
            versions = {name: v for name, v in versions.items() if name not in facts}
        return cls(
            rank=data["rank"],
            world_size=data["world_size"],
            axes={axis: (place[0], place[1]) for axis, place in data["axes"].items()},
            batch=None if data["batch"] is None else (data["batch"][0], data["batch"][1]),
            loss_parts=_count(data.get("loss_parts")),
            adapter=data["adapter"],
            device=data["device"],
            noise_seed=data["perturbed"],
            other_kernels=data.get("other_kernels", False),
            modules=tuple(
                ModuleInfo(path=path, class_name=name, source=source)
                for path, name, source in data["modules"]
            ),
            versions=versions,
            facts=facts,
            vocabulary=tuple(data.get("vocabulary", ())),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What a rank says when it ends well: its last journal line."""

    steps: int
    hooks_expected: int
    hooks_fired: int
    unfired: tuple[str, ...] = ()  # ids whose gradient hook never fired
    never_called: tuple[str, ...] = ()  # module paths
    faults: tuple[str, ...] = ()  # exceptions inside hooks, kept away from the training run
    notes: tuple[str, ...] = ()
    updated_by_hand: bool = False  # by no optimizer, from gradients that nothing overwrites
    hyperparameters: tuple[Hyperparameter, ...] = ()
    asked: int = 0  # steps that were to be recorded; 0 where an older version recorded them
    wrappers: tuple[str, ...] = ()  # classes around the model, or instead of those people wrote
    optimizers: tuple[str, ...] = ()  # classes of those that made a step
    seconds: float = 0.0  # that the last recorded step took
    recording_seconds: float = 0.0  # of which tensors were copied and written
    code: Code = field(default_factory=Code)


def _count(value: Any) -> int | None:
    if value is None or (type(value) is int and value > 0):
        return value
    raise ValueError(f"{value!r} is not a number of parts")
