"""The file of a part: what one of several workers measured, sealed, and read through the door.

    parts/part-2-of-16.json     {"format": "ttrace-part", "worker": {"number": 2, "count": 16}, ...

Enters: plain values; files that a stranger may have made. Leaves: the same. A number survives to
the last bit. What of it belongs to a check, parts.py says.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from ttrace.analysis.compare import Measured
from ttrace.core.door import from_dict, read_bounded
from ttrace.core.limits import MOST_WORKERS, PART_BYTES, Between, Digest, Label, Matching, Size
from ttrace.core.plain import strict_json, to_dict
from ttrace.core.refused import Refused
from ttrace.errors import UsageError
from ttrace.trace.sealed import seal, unseal

PART_FORMAT, PART_VERSION = "ttrace-part", 1
_NAME = re.compile(r"part-([0-9]+)-of-([0-9]+)\.json")
_Position = Annotated[int, Between(1, MOST_WORKERS)]


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticWorker:
    """One of so many workers that share a check and never speak; they count from 1."""

    number: _Position
    count: _Position

    def __post_init__(self) -> None:
        if not 1 <= self.number <= self.count <= MOST_WORKERS:
            raise UsageError(
                f"there is no worker {self.number} of {self.count}: they count from 1, expected "
                f"1/{self.count} to {self.count}/{self.count}, and {MOST_WORKERS:,} at most"
            )

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    @classmethod
    def parse(cls, text: str) -> StaticWorker:
        match = re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", text)
        if match is None:
            raise UsageError(f"{text!r} is no worker: expected a number and how many, as 2/16")
        return cls(number=int(match[1]), count=int(match[2]))

    @property
    def file_name(self) -> str:
        return f"part-{self.number}-of-{self.count}.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartIdentity:
    """What was compared, as checksums: the records of both runs, and how they were measured."""

    reference: Digest
    candidate: Digest
    manner: Digest


@dataclass(frozen=True, slots=True, kw_only=True)
class PartComparison:
    """What a worker did of one comparison, by the numbers of its jobs."""

    what: Label
    identity: PartIdentity
    measured: tuple[tuple[Size, Measured], ...]
    verified: tuple[Size, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredPart:
    """All that one worker did."""

    format: Annotated[str, Matching(PART_FORMAT)]
    version: Annotated[int, Between(PART_VERSION, PART_VERSION)]
    worker: StaticWorker
    comparisons: tuple[PartComparison, ...]


def write_part(folder: Path, worker: StaticWorker, comparisons: list[PartComparison]) -> Path:
    """The file, which is there whole or not at all, also after a loss of power."""
    part = MeasuredPart(
        format=PART_FORMAT, version=PART_VERSION, worker=worker, comparisons=tuple(comparisons)
    )
    text, _ = seal(strict_json(to_dict(part)))
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / worker.file_name
    unfinished = folder / f".{file.name}.{os.getpid()}"
    try:
        with unfinished.open("wb") as opened:
            opened.write(text)
            opened.flush()
            os.fsync(opened.fileno())
        unfinished.replace(file)
    finally:
        unfinished.unlink(missing_ok=True)
    return file


def read_parts(folder: Path) -> list[tuple[Path, MeasuredPart]]:
    """All parts of one check, in the order of their workers; none is missing."""
    found = dict(_workers_in(folder))
    if not found:
        raise UsageError(
            f"{folder} holds no part of a check, expected part-1-of-N.json and on; measure with "
            f"`ttrace check ... --worker 1/N --parts {folder}` first, to N/N"
        )
    counts = sorted({worker.count for worker in found})
    if len(counts) > 1:
        names = ", ".join(
            next(worker.file_name for worker in found if worker.count == count) for count in counts
        )
        raise UsageError(
            f"{folder} holds parts of several checks ({names}): how many workers share one? Remove "
            f"those that are of another, or take a folder for each"
        )
    every = [StaticWorker(number=n + 1, count=counts[0]) for n in range(counts[0])]
    missing = [worker for worker in every if worker not in found]
    if missing:
        names = ", ".join(worker.file_name for worker in missing[:4])
        more = f" and {len(missing) - 4} more" if len(missing) > 4 else ""
        raise UsageError(
            f"{folder} lacks {names}{more}: its worker has not ended, or failed; run `ttrace check "
            f"... --worker {missing[0]} --parts {folder}`, then this again"
        )
    return [(found[worker], _read(found[worker], worker)) for worker in every]


def _workers_in(folder: Path) -> Iterator[tuple[StaticWorker, Path]]:
    for file in sorted(folder.iterdir()) if folder.is_dir() else ():
        match = _NAME.fullmatch(file.name)
        if match is not None:
            yield StaticWorker.parse(f"{match[1]}/{match[2]}"), file


def _read(file: Path, worker: StaticWorker) -> MeasuredPart:
    try:
        part = from_dict(MeasuredPart, unseal(read_bounded(file, PART_BYTES))[0])
        if part.worker != worker:
            raise Refused(str(part.worker), str(worker), ".worker")
    except Refused as refused:
        raise UsageError(
            f"{file} is not what worker {worker} of a check measured: {refused}; remove it, then "
            f"run `ttrace check ... --worker {worker} --parts {file.parent}` again"
        ) from refused
    return part
