"""Traces of a step that nobody ran: a reference, a perturbed one, and a candidate on many ranks.

Enters: a folder, and how large the step and its mesh are. Leaves: traces by the writer that real
runs use, with fingerprints wherever a run would have them. `wrong` spoils the output of one module
on one rank.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch

from ttrace.core.ids import Kind, TensorId
from ttrace.core.record import Location, ModuleInfo, PayloadRef, RankInfo, Record, Summary
from ttrace.measure.cells import FEWEST
from ttrace.trace.dtypes import dtype_name
from ttrace.trace.fingerprint import FingerprintPayload
from ttrace.trace.journal import rank_folder
from ttrace.trace.payload import FULL, Payload
from ttrace.trace.writer import TraceWriter
from zoo.made_up.step import Tensor, modules, stages_of, step
from zoo.made_up.values import Mesh, Shard, Values


@dataclass(frozen=True, slots=True, kw_only=True)
class Wrong:
    """The output of a module is too large by `error` on one rank."""

    module: str
    rank: int
    error: float = 0.01

    def is_at(self, id_: TensorId, rank: int) -> bool:
        return (id_.module, id_.kind, rank) == (self.module, Kind.OUTPUT, self.rank)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredAs:
    """As what tensors are stored: those of one block whole, others by at least so many sums."""

    sums: int = FEWEST
    whole: str = ""  # the path of a block

    def payload_of(self, id_: TensorId, values: torch.Tensor) -> Payload:
        fingerprint = FingerprintPayload(self.sums)
        is_whole = bool(self.whole) and f"{id_.module}.".startswith(f"{self.whole}.")
        return FULL if is_whole or not fingerprint.takes(values, asked=True) else fingerprint


def write_reference(
    folder: Path,
    layers: int,
    samples: int,
    *,
    noise_seed: int | None,
    stored: StoredAs | None = None,
) -> None:
    """On one rank; with a seed it is a perturbed one."""
    alone = Mesh(tp=1, dp=samples)
    values = Values("reference" if noise_seed is None else f"noise {noise_seed}", alone)
    info = _info(0, Mesh(tp=1, dp=1), layers, noise_seed)
    writer = _RankWriter(folder, info, stored or StoredAs())
    for sequence, tensor in enumerate(step(layers), start=1):
        writer.write(tensor, sequence, Shard(values.whole(tensor), None), None)
    writer.close()


def write_candidate(
    folder: Path,
    layers: int,
    mesh: Mesh,
    wrong: Wrong | None = None,
    stored: StoredAs | None = None,
) -> int:
    """On all ranks of the mesh; how many records that are."""
    run = _Candidate(folder, layers, mesh, stored or StoredAs())
    ranks = (range(n * mesh.stage_ranks, (n + 1) * mesh.stage_ranks) for n in range(mesh.pp))
    return sum(run.write(some, wrong) for some in ranks)


def write_spoilt(
    folder: Path,
    right: Path,
    layers: int,
    mesh: Mesh,
    wrong: Wrong,
    stored: StoredAs | None = None,
) -> None:
    """As a candidate that was right, but for one rank; the files of all others are the same."""
    for source in right.iterdir():
        if source.name != rank_folder(wrong.rank):
            (folder / source.name).mkdir(parents=True)
            for file in source.iterdir():
                (folder / source.name / file.name).hardlink_to(file)
    run = _Candidate(folder, layers, mesh, stored or StoredAs())
    run.write(range(wrong.rank, wrong.rank + 1), wrong)


@dataclass(frozen=True, slots=True)
class _Candidate:
    folder: Path
    layers: int
    mesh: Mesh
    stored: StoredAs

    def write(self, ranks: range, wrong: Wrong | None) -> int:
        """Some ranks of one pipeline stage."""
        mesh, stage = self.mesh, ranks.start // self.mesh.stage_ranks
        values = Values("candidate", mesh)
        infos = {rank: _info(rank, mesh, self.layers) for rank in ranks}
        writers = {r: _RankWriter(self.folder, info, self.stored) for r, info in infos.items()}
        count = 0
        for sequence, tensor in enumerate(step(self.layers), start=1):
            if stage not in stages_of(tensor.id, self.layers, mesh.pp):
                continue
            # What another pipeline stage sent has the values that it had there.
            made_as = tensor if tensor.same_as is None else replace(tensor, id=tensor.same_as)
            whole, known = values.whole(made_as), dict[int, tuple[Shard, _Bytes | None]]()
            for rank, writer in writers.items():
                replica = mesh.place(rank)[1] if values.is_shared(tensor) else -1
                shard, made = known.get(replica) or (values.shard(made_as, whole, rank), None)
                if wrong is not None and wrong.is_at(tensor.id, rank):
                    shard, made = Shard(shard.values * (1 + wrong.error), shard.layout), None
                made = writer.write(tensor, sequence, shard, made)
                if replica >= 0:
                    known[replica] = shard, made
                count += 1
        for writer in writers.values():
            writer.close()
        return count


@dataclass(frozen=True, slots=True)
class _Bytes:
    """A tensor as it is stored."""

    payload: PayloadRef | None
    data: memoryview


class _RankWriter:
    """One rank."""

    def __init__(self, folder: Path, info: RankInfo, stored: StoredAs) -> None:
        self._rank = info.rank
        self._stored = stored
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
            # What another pipeline stage sent is another tensor.
            same_as=tensor.same_as if tensor.same_as in self._places else None,
        )
        if record.same_as is not None:
            location, payload = self._places[record.same_as]
            record = (
                record.at(location) if payload is None else record.at(location).stored_as(payload)
            )
            self._writer.note(record)
            return None
        made = made or _encoded(record, shard, self._stored)
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


def _encoded(record: Record, shard: Shard, stored: StoredAs) -> _Bytes:
    payload = stored.payload_of(record.id, shard.values)
    described, data = payload.encode(record, shard.values)
    return _Bytes(described.payload, data() if callable(data) else data)


def _info(rank: int, mesh: Mesh, layers: int, noise_seed: int | None = None) -> RankInfo:
    at, index = mesh.place(rank)
    is_alone = mesh.ranks == 1
    axes = {"dp": (at, mesh.dp), "tp": (index, mesh.tp)}
    if mesh.pp > 1:
        axes["pp"] = rank // mesh.stage_ranks, mesh.pp
    return RankInfo(
        rank=rank,
        world_size=mesh.ranks,
        axes={} if is_alone else axes,
        batch=None if is_alone else (at, mesh.dp),
        noise_seed=noise_seed,
        modules=tuple(
            ModuleInfo(path=path, class_name="Module", source="model.py:1")
            for path in modules(layers)
        ),
    )
