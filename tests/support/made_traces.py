"""Traces made by hand: records without bytes, or small tensors on disk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import xxhash

from ttrace.analysis.batch import Batch, MicrobatchKey, Part
from ttrace.core.ids import TensorId
from ttrace.core.layout import Run
from ttrace.core.record import Location, RankInfo, Record, Summary
from ttrace.core.rows import RecordRows
from ttrace.trace.dtypes import dtype_name
from ttrace.trace.reader import RankTrace, Trace
from ttrace.trace.writer import TraceWriter

Axes = Mapping[int, dict[str, tuple[int, int]]]  # by rank


def record_of(
    name: str, rank: int, shape: Sequence[int], *, value: str = "", **more: Any
) -> Record:
    """A record of step 0 without bytes; equal `value`s are equal bytes."""
    digest = xxhash.xxh3_64_hexdigest((value or f"rank {rank}").encode())
    return Record(
        id=TensorId.parse(f"step0/{name}"),
        rank=rank,
        sequence=0,
        dtype="float32",
        shape=tuple(shape),
        location=Location(
            segment="",
            offset=0,
            size_bytes=0,
            xxh3=digest,
        ),
        **more,
    )


def trace_of(*records: Record, axes: Axes | None = None) -> Trace:
    """A trace of these records, by the ranks that they name."""
    ranks = sorted({record.rank for record in records} | set(axes or ()))
    return Trace(
        path=Path("made-up"),
        ranks={
            rank: RankTrace(
                info=RankInfo(rank=rank, world_size=len(ranks), axes=(axes or {}).get(rank, {})),
                records=RecordRows.of([each for each in records if each.rank == rank]),
            )
            for rank in ranks
        },
    )


def batch_of(size: int, parts: Mapping[tuple[int, int], tuple[int, int]]) -> Batch:
    """A batch of step 0: (rank, microbatch) -> first sample and how many."""
    return Batch(
        sizes={0: size},
        parts={MicrobatchKey(0, *key): Part((Run(*run),)) for key, run in parts.items()},
    )


def write_rank(
    folder: Path,
    rank: int,
    ranks: int,
    tensors: Mapping[str, Any],
    *,
    noise_seed: int | None = None,
) -> Path:
    """One rank of a trace on disk; a value is a tensor, or a tensor and its layout."""
    writer = TraceWriter(folder, RankInfo(rank=rank, world_size=ranks, noise_seed=noise_seed))
    for sequence, (name, found) in enumerate(tensors.items()):
        tensor, layout = (found, None) if isinstance(found, torch.Tensor) else found
        record = Record(
            id=TensorId.parse(f"step0/{name}"),
            rank=rank,
            sequence=sequence,
            dtype=dtype_name(tensor.dtype),
            shape=tuple(tensor.shape),
            layout=layout,
        )
        writer.write(record, tensor)
    writer.close(Summary(steps=1, hooks_expected=0, hooks_fired=0))
    return folder
