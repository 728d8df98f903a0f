"""Traces of a step that nobody ran: a reference, a perturbed one, and a candidate on many ranks.

Enters: a folder, and how large the step and its mesh are. Leaves: traces by the writer that real
runs use, with fingerprints wherever a run would have them. `wrong` spoils the output of one module
on one rank.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from benchmarks.fingerprints.step import Tensor, modules, step
from benchmarks.fingerprints.values import Mesh, Shard, Values
from ttrace.core.ids import Kind, TensorId
from ttrace.core.record import Location, ModuleInfo, PayloadRef, RankInfo, Record, Summary
from ttrace.trace.dtypes import dtype_name
from ttrace.trace.fingerprint import FINGERPRINT
from ttrace.trace.payload import FULL
from ttrace.trace.writer import TraceWriter


@dataclass(frozen=True, slots=True, kw_only=True)
class Wrong:
    """The output of a module is too large by `error` on one rank."""

    module: str
    rank: int
    error: float = 0.01

    def is_at(self, id_: TensorId, rank: int) -> bool:
        return (id_.module, id_.kind, rank) == (self.module, Kind.OUTPUT, self.rank)


def write_reference(folder: Path, layers: int, samples: int, *, noise_seed: int | None) -> None:
    """On one rank; with a seed it is a perturbed one."""
    alone = Mesh(tp=1, dp=samples)
    values = Values("reference" if noise_seed is None else f"noise {noise_seed}", alone)
    writer = _RankWriter(folder, _info(0, Mesh(tp=1, dp=1), layers, noise_seed))
    for sequence, tensor in enumerate(step(layers), start=1):
        writer.write(tensor, sequence, Shard(values.whole(tensor), None), None)
    writer.close()


def write_candidate(folder: Path, layers: int, mesh: Mesh, wrong: Wrong | None = None) -> int:
    """On all ranks of the mesh; how many records that are."""
    values = Values("candidate", mesh)
    writers = [_RankWriter(folder, _info(rank, mesh, layers)) for rank in range(mesh.ranks)]
    count = 0
    for sequence, tensor in enumerate(step(layers), start=1):
        whole, known = values.whole(tensor), dict[int, tuple[Shard, _Bytes | None]]()
        for rank, writer in enumerate(writers):
            replica = mesh.place(rank)[1] if values.is_shared(tensor) else -1
            shard, made = known.get(replica) or (values.shard(tensor, whole, rank), None)
            if wrong is not None and wrong.is_at(tensor.id, rank):
                shard, made = Shard(shard.values * (1 + wrong.error), shard.layout), None
            made = writer.write(tensor, sequence, shard, made)
            if replica >= 0:
                known[replica] = shard, made
            count += 1
    for writer in writers:
        writer.close()
    return count


@dataclass(frozen=True, slots=True)
class _Bytes:
    """A tensor as it is stored."""

    payload: PayloadRef | None
    data: memoryview


class _RankWriter:
    """One rank."""

    def __init__(self, folder: Path, info: RankInfo) -> None:
        self._rank = info.rank
        self._writer = TraceWriter(folder, info)
        self._places: dict[TensorId, tuple[Location, PayloadRef | None]] = {}

    def write(
        self, tensor: Tensor, sequence: int, shard: Shard, made: _Bytes | None
    ) -> _Bytes | None:
        """`made`: the same values were encoded before; what they are encoded as."""
        record = Record(
            id=tensor.id,
            rank=self._rank,
            sequence=sequence,
            dtype=dtype_name(shard.values.dtype),
            shape=tuple(shard.values.shape),
            layout=shard.layout,
            same_as=tensor.same_as,
        )
        if tensor.same_as is not None:
            location, payload = self._places[tensor.same_as]
            record = (
                record.at(location) if payload is None else record.at(location).stored_as(payload)
            )
            self._writer.note(record)
            return None
        made = made or _encoded(record, shard)
        record = record if made.payload is None else record.stored_as(made.payload)
        reserved = self._writer.reserve(made.data.nbytes)
        reserved.write(made.data)
        located = self._writer.keep(record, reserved)
        self._writer.note(located)
        if tensor.id.kind.is_activation and located.location is not None:
            self._places[tensor.id] = located.location, located.payload
        return made

    def close(self) -> None:
        self._writer.end_step(0)
        self._writer.close(Summary(steps=1, hooks_expected=0, hooks_fired=0, asked=1))


def _encoded(record: Record, shard: Shard) -> _Bytes:
    values = shard.values
    payload = FINGERPRINT if FINGERPRINT.takes(values, asked=True) else FULL
    described, data = payload.encode(record, values)
    return _Bytes(described.payload, data() if callable(data) else data)


def _info(rank: int, mesh: Mesh, layers: int, noise_seed: int | None = None) -> RankInfo:
    at, index = mesh.place(rank)
    is_alone = mesh.ranks == 1
    return RankInfo(
        rank=rank,
        world_size=mesh.ranks,
        axes={} if is_alone else {"dp": (at, mesh.dp), "tp": (index, mesh.tp)},
        batch=None if is_alone else (at, mesh.dp),
        noise_seed=noise_seed,
        modules=tuple(
            ModuleInfo(path=path, class_name="Module", source="model.py:1")
            for path in modules(layers)
        ),
    )
