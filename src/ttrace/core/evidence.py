"""Evidence: what people want to see of one suspect tensor and of a run, as plain data.

    shards      rank 2 holds [0:4, 32:64], 8e5 times its share of the tolerance
    tiles       the error in at most 64 x 64 cells of the logical tensor
    ulp         how many elements are 0, 1, 2-3, 4-7 ... units in the last place off
    worst_rows  (3, 17) with an error of 0.2, held by rank 2
    examined    1,081,344: a sample of a large tensor, from which all of the above is told

Values only: they are made by analysis/diagnose/examine.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Annotated

from ttrace.core.blame import Diagnosis, Nearest
from ttrace.core.ids import TensorId
from ttrace.core.limits import AtMost, Matching, Size
from ttrace.core.mesh import Mesh
from ttrace.core.record import RankInfo
from ttrace.errors import UsageError

CELLS = 64  # chosen: a wrong shard of 64 ranks is still a block of its own
HeldRuns = tuple[tuple[int, int], ...]  # (first index, length), in one dim
TileRow = Annotated[tuple[float, ...], AtMost(CELLS)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """What some ranks hold of a tensor, and how wrong it is."""

    ranks: tuple[int, ...]
    microbatches: tuple[int, ...]
    role: Annotated[str, Matching("shard|replica|recomputed|sum")]
    runs: tuple[HeldRuns, ...]  # for every dim
    relative_error: float
    ratio: float | None  # error over this part's share of the tolerance
    agrees: bool = True  # a replica that is bitwise what it repeats; others always


@dataclass(frozen=True, slots=True, kw_only=True)
class RowError:
    """One row (every dim fixed but the last), with the ranks that hold it."""

    index: tuple[int, ...]
    error_norm: float
    reference_norm: float
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ElementError:
    """One element of both runs, with the ranks that hold it."""

    index: tuple[int, ...]
    reference: float
    candidate: float
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scalar:
    """What some ranks hold of a tensor of one element."""

    ranks: tuple[int, ...]
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Detail:
    """One suspect. It is drawn as a matrix: all dims but the last are its rows."""

    id: TensorId
    shape: tuple[int, ...]
    shards: tuple[Shard, ...]
    tiles: Annotated[tuple[TileRow, ...], AtMost(CELLS)]  # root mean square of the error in each
    reference_rms: float
    allowed_rms: float | None  # the tolerance as an error per element
    ulp: tuple[int, ...]  # counts; entry 0 is equal, entry n is 2**(n-1) to 2**n - 1 units
    worst_rows: tuple[RowError, ...]
    wrong_ranks: tuple[int, ...]  # empty when all are wrong, or none by itself
    examined: Size | None = None  # elements that were looked at, where those are not all
    diagnosis: Diagnosis | None = None  # where a kind of mistake explains the error
    nearest: Nearest | None = None  # where none does
    elements: tuple[ElementError, ...] = ()  # the worst
    scalars: tuple[Scalar, ...] = ()  # of a tensor of one element, by rank

    @property
    def is_wrong_everywhere(self) -> bool:
        """Whether every part exceeds its share of the tolerance."""
        return bool(self.shards) and all((shard.ratio or 0.0) > 1 for shard in self.shards)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """How one run was configured: what a colleague asks first."""

    role: Annotated[str, Matching("reference|candidate|perturbed")]
    path: str
    world_size: int
    mesh: dict[str, int]
    dtypes: tuple[str, ...]  # of its parameters
    adapter: str
    device: str
    steps: int
    noise_seed: int | None
    versions: dict[str, str]
    facts: dict[str, str] = field(default_factory=dict)
    coordinates: tuple[tuple[int, ...], ...] = ()  # by rank, in the order of the mesh's axes

    def __post_init__(self) -> None:
        if any(len(own) != len(self.mesh) for own in self.coordinates):
            raise UsageError(f"ranks have {len(self.mesh)} coordinates, found {self.coordinates}")

    @property
    def placed(self) -> Mesh:
        return Mesh(axes=self.mesh, coordinates=self.coordinates)

    @classmethod
    def of(
        cls, role: str, path: str, ranks: Sequence[RankInfo], steps: int, dtypes: Sequence[str]
    ) -> RunFacts:
        info = ranks[0]
        axes = {axis: size for axis, (_, size) in info.axes.items()}
        return cls(
            role=role,
            path=path,
            world_size=info.world_size,
            mesh=axes,
            dtypes=tuple(dtypes),
            adapter=info.adapter,
            device=info.device,
            steps=steps,
            noise_seed=info.noise_seed,
            versions=info.versions,
            facts=info.facts,
            coordinates=coordinates_of(axes, ranks),
        )


def coordinates_of(axes: Iterable[str], ranks: Sequence[RankInfo]) -> tuple[tuple[int, ...], ...]:
    """Of every rank; of none where a rank does not tell all of its own."""
    found = tuple(tuple(rank.axes[axis][0] for axis in axes if axis in rank.axes) for rank in ranks)
    return found if all(len(own) == len(tuple(axes)) for own in found) else ()
