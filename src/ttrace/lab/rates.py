"""Rates of this machine: a short self-test that records two small models and reads their traces.

Enters: the form in which tensors are recorded, a device, and a folder on the disk of traces.
Leaves: seconds for every record and for every byte, told apart by a model of many small tensors and
one of few large ones; seconds to read a record; bytes a second of the disk. Its files are removed.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import nn

from ttrace.adapters.registry import find_adapter
from ttrace.capture.settings import Settings
from ttrace.capture.step import RecordingTracer
from ttrace.capture.tracer import Attached
from ttrace.core.door import from_dict, parse_json, read_bounded
from ttrace.core.estimate import Rates
from ttrace.core.limits import ACCEPT_BYTES
from ttrace.core.refused import Refused
from ttrace.errors import UsageError
from ttrace.trace.reader import Trace

# Chosen: 40 layers of tensors that take no time, and 3 whose tensors take nearly all of it.
_DEEP, _BROAD = (40, 16, 8), (3, 1024, 512)
_ROUNDS = 3  # chosen: the first imports and compiles, the best of the others counts
_DISK_BYTES, _CHUNK_BYTES = 64 << 20, 4 << 20  # chosen: a second on a slow disk


@dataclass(frozen=True, slots=True)
class _Taken:
    """What recording one model took."""

    records: int
    value_bytes: int
    seconds: float
    read_seconds: float


def measured_rates(capture: str, payload: str | None, device: str, folder: Path) -> Rates:
    """Seconds of work on this machine, about five of them."""
    there = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
    where = device if device == "cuda" and torch.cuda.is_available() else "cpu"
    with TemporaryDirectory(prefix="ttrace-rates-", dir=there) as name:
        deep, broad = (_best(Path(name), shape, payload, where) for shape in (_DEEP, _BROAD))
        disk_rate = _disk_rate(Path(name))
    # Two equations: records and bytes of both models.
    by_record, by_byte = _solved(deep, broad)
    return Rates(
        device=where,
        capture=capture,
        record_seconds=by_record,
        byte_seconds=by_byte,
        read_seconds=deep.read_seconds / deep.records,
        disk_rate=disk_rate,
    )


def read_rates(file: Path, capture: str) -> Rates:
    """Those that --json wrote on another machine."""
    try:
        data = parse_json(read_bounded(file, ACCEPT_BYTES))
        rates = from_dict(Rates, data["rates"] if isinstance(data, dict) else data)
    except (Refused, KeyError) as error:
        raise UsageError(
            f"{file} has no rates: {error}; write some with `ttrace plan --estimate TRACE --json "
            "FILE` on the machine that they are of"
        ) from error
    if (rates.capture == "full") != (capture == "full"):
        raise UsageError(
            f"{file} has rates of --capture {rates.capture}, and --capture {capture} is asked for"
        )
    return rates


def _best(folder: Path, shape: tuple[int, int, int], payload: str | None, device: str) -> _Taken:
    layers, width, rows = shape
    taken = []
    for number in range(_ROUNDS):
        settings = Settings(folder=folder / f"{width}-{number}", payload=payload)
        taken.append(_recorded(settings, layers, width, rows, device))
    later = taken[1:]
    return _Taken(
        taken[0].records,
        taken[0].value_bytes,
        min(found.seconds for found in later),
        min(found.read_seconds for found in later),
    )


def _recorded(settings: Settings, layers: int, width: int, rows: int, device: str) -> _Taken:
    model = nn.Sequential(*(nn.Linear(width, width, device=device) for _ in range(layers)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    tracer = RecordingTracer(find_adapter(model), Attached(model, [optimizer]), settings)
    with tracer.step():
        model(torch.ones(rows, width, device=device)).square().mean().backward()
        optimizer.step()
    tracer.finish()
    start = time.process_time()  # what others do meanwhile is not a part of it
    (rank,) = Trace.open(settings.folder).ranks.values()
    read_seconds = time.process_time() - start
    assert rank.summary is not None
    stored = {record.location: record for record in rank.records if record.location}
    sizes = (torch.Size(record.shape).numel() for record in stored.values())
    value_bytes = sum(sizes) * torch.float32.itemsize
    spent = rank.summary.recording_seconds
    return _Taken(len(rank.records), value_bytes, spent, read_seconds)


def _solved(deep: _Taken, broad: _Taken) -> tuple[float, float]:
    """Seconds of a record and of a byte; neither is below nothing."""
    by_record = deep.seconds / deep.records
    for _ in range(8):  # each is found with the other one known: their matrix is nearly diagonal
        by_byte = max(0.0, broad.seconds - by_record * broad.records) / broad.value_bytes
        by_record = max(0.0, deep.seconds - by_byte * deep.value_bytes) / deep.records
    return by_record, by_byte


def _disk_rate(folder: Path) -> float:
    """Bytes that reach the disk in a second."""
    data = os.urandom(_CHUNK_BYTES)
    start = time.perf_counter()
    with (folder / "disk").open("wb") as file:
        for _ in range(_DISK_BYTES // _CHUNK_BYTES):
            file.write(data)
        file.flush()
        os.fsync(file.fileno())
    return _DISK_BYTES / (time.perf_counter() - start)
