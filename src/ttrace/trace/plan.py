"""What a run is told beforehand: plans of isolated runs, and blocks of samples.

A plan says which reference values each rank overwrites its own with. Alignment of the first
candidate run resolved where every record sits in its logical tensor. The plan keeps that beside the
pieces of the reference, so that the isolated run never has to guess and needs nothing but this file
and the reference's trace.

Blocks of samples say how a reference cuts calls of its modules, so that each has scales of its own:

    SampleBlocks(module="layers.0.wq", dim=0, blocks=((Run(0, 2),), (Run(2, 2),)))
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar

from ttrace.core.door import Refused, from_dict, parse_json, read_bounded, to_dict
from ttrace.core.ids import TensorId
from ttrace.core.layout import Layout, Runs
from ttrace.core.limits import PLAN_BYTES, RANKS, AtMost, Count, Dim, Label, Rank, Size, Sizes
from ttrace.core.logical import LogicalTensor, Piece
from ttrace.core.record import Record
from ttrace.core.scale import Scales
from ttrace.errors import UsageError
from ttrace.trace.journal import line_of
from ttrace.trace.manifest import seal, unseal
from ttrace.trace.store import PathOrUrl, place_of

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """A record sits here: the part of its microbatch, and the layout within the logical tensor.

    `share` is (index, count) among the microbatches of all ranks when the value is the same for all
    samples: each then contributes a share to its gradient.
    """

    layout: Layout
    outer: Layout
    share: tuple[int, int] = (0, 1)


class PositionKey(NamedTuple):
    """Which record of a rank a position belongs to."""

    id: TensorId
    microbatch: int
    origin: int | None  # the rank whose tokens were sent here


@dataclass(frozen=True, slots=True, kw_only=True)
class IsolationPlan:
    """One rank needs this: its positions, the reference's tensors, and scales its loss may have."""

    reference: PathOrUrl
    scales: Scales
    positions: Mapping[PositionKey, Position]
    tensors: Mapping[TensorId, LogicalTensor]
    crops: Mapping[TensorId, tuple[int, int]]  # dim and size where a padded vocabulary ends
    kept: frozenset[TensorId] = frozenset()  # not overwritten: inside a module that is one segment
    probes: Mapping[TensorId, float] = field(default_factory=dict)  # to get an error so large
    modules: frozenset[str] | None = None  # at whose boundaries values are given; None: at all

    def write(self, file: Path) -> None:
        data = {
            "reference": str(self.reference),
            "scales": {"allowed": list(self.scales.allowed), "likely": self.scales.likely},
            "positions": [
                [str(id_), microbatch, origin, p.layout.to_json(), p.outer.to_json(), list(p.share)]
                for (id_, microbatch, origin), p in self.positions.items()
            ],
            "tensors": {str(id_): _tensor_json(tensor) for id_, tensor in self.tensors.items()},
            "crops": {str(id_): list(crop) for id_, crop in self.crops.items()},
            "kept": sorted(map(str, self.kept)),
            "probes": {str(id_): size for id_, size in self.probes.items()},
            "modules": None if self.modules is None else sorted(self.modules),
        }
        file.write_bytes(seal(data)[0])

    @classmethod
    def read(cls, file: Path) -> IsolationPlan:
        written = _read(file, _WrittenPlan)
        return cls(
            reference=place_of(written.reference),
            scales=written.scales,
            positions={
                PositionKey(id_, microbatch, origin): Position(
                    layout=layout, outer=outer, share=share
                )
                for id_, microbatch, origin, layout, outer, share in written.positions
            },
            tensors={id_: tensor.tensor() for id_, tensor in written.tensors.items()},
            crops=written.crops,
            kept=frozenset(written.kept),
            probes=written.probes,
            modules=None if written.modules is None else frozenset(written.modules),
        )


def plan_file(folder: Path, rank: int) -> Path:
    return folder / f"plan-{rank:05d}.json"


def first_plan(folder: Path) -> Path:
    """The plan of rank 0, which every folder of plans has."""
    file = plan_file(folder, 0)
    if not file.is_file():
        raise UsageError(
            f"{folder} has no {file.name}: expected a folder of plans; make one with `ttrace plan`"
        )
    return file


def read_scales(folder: Path) -> Scales:
    """The scales that gradients may have in a run by these plans; all ranks have the same."""
    return _read(first_plan(folder), _WrittenTerms).scales


def read_modules(folder: Path) -> frozenset[str] | None:
    """The modules at whose boundaries a run by these plans is given values; None: all."""
    found = _read(first_plan(folder), _WrittenTerms).modules
    return None if found is None else frozenset(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class _WrittenPiece:
    layout: Layout
    records: tuple[tuple[Rank, dict[str, Any]], ...]
    factor: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _WrittenTensor:
    shape: Sizes
    pieces: tuple[_WrittenPiece, ...]

    def tensor(self) -> LogicalTensor:
        return LogicalTensor(
            shape=self.shape,
            pieces=tuple(
                Piece(
                    layout=piece.layout,
                    records=tuple(from_dict(Record, r, rank=rank) for rank, r in piece.records),
                    factor=piece.factor,
                )
                for piece in self.pieces
            ),
        )


_WrittenPosition = tuple[TensorId, Size, Rank | None, Layout, Layout, tuple[Size, Count]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _WrittenTerms:
    scales: Scales
    modules: tuple[str, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _WrittenPlan(_WrittenTerms):
    reference: str
    positions: tuple[_WrittenPosition, ...]
    tensors: dict[TensorId, _WrittenTensor]
    crops: dict[TensorId, tuple[Dim, Size]]
    kept: tuple[TensorId, ...]
    probes: dict[TensorId, float]


def _read(file: Path, cls: type[_T]) -> _T:
    try:
        return from_dict(cls, unseal(read_bounded(file, PLAN_BYTES))[0])
    except Refused as refused:
        raise UsageError(
            f"{file} is not a plan: {refused}; make plans with `ttrace plan`"
        ) from refused


def _tensor_json(tensor: LogicalTensor) -> dict[str, Any]:
    return {
        "shape": list(tensor.shape),
        "pieces": [
            {
                "layout": piece.layout.to_json(),
                "records": [[r.rank, parse_json(line_of(r))] for r in piece.records],
                "factor": piece.factor,
            }
            for piece in tensor.pieces
        ],
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleBlocks:
    """Of the calls that one rank makes in one microbatch: local indices along `dim` of its input.

    No index is in two blocks, and each is in one.
    """

    module: Label
    rank: Rank = 0
    microbatch: Size = 0
    dim: Dim
    blocks: Annotated[tuple[Runs, ...], AtMost(RANKS)]

    @property
    def length(self) -> int:
        """Of the dim that is cut."""
        return sum(run.length for runs in self.blocks for run in runs)


@dataclass(frozen=True, slots=True, kw_only=True)
class _WrittenBlocks:
    calls: tuple[SampleBlocks, ...]


def write_blocks(file: Path, calls: Iterable[SampleBlocks]) -> None:
    data = to_dict(_WrittenBlocks(calls=tuple(calls)))
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(seal(data)[0])


def read_blocks(file: Path) -> tuple[SampleBlocks, ...]:
    try:
        return from_dict(_WrittenBlocks, unseal(read_bounded(file, PLAN_BYTES))[0]).calls
    except Refused as refused:
        raise UsageError(
            f"{file} does not tell blocks of samples: {refused}; `ttrace diff` writes such a file"
        ) from refused
