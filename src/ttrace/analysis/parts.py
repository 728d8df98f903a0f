"""A check that several workers share: who does which jobs, and what all of them did together.

Workers that never speak to each other (the jobs of an array, say) open and align the same traces,
so they agree on the jobs. Enters: comparisons, and parts of a check (part_file.py). Leaves: numbers
of jobs, or what was measured of every pair. What was measured of other traces, or otherwise, is
refused by its name.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import xxhash

from ttrace.analysis.compare import Measured
from ttrace.analysis.comparison import RunComparison
from ttrace.analysis.engine import Job
from ttrace.analysis.part_file import (
    MeasuredPart,
    PartComparison,
    PartIdentity,
    StaticWorker,
    read_parts,
)
from ttrace.core.form import records_of
from ttrace.core.logical import LogicalTensor
from ttrace.errors import UsageError


def share_of(jobs: Sequence[Job[Any]], worker: StaticWorker) -> list[int]:
    """The numbers of the jobs of one worker: the largest first, each to who has least to do."""
    loads = [(0, number) for number in range(1, worker.count + 1)]
    costs = [job.cost for job in jobs]
    mine = []
    for job in sorted(range(len(jobs)), key=lambda number: (-costs[number], number)):
        load, number = loads[0]
        heapq.heapreplace(loads, (load + costs[job], number))
        if number == worker.number:
            mine.append(job)
    return sorted(mine)


def share_done(
    comparison: RunComparison, numbers: Sequence[int], results: Sequence[Measured | None]
) -> PartComparison:
    """What a worker writes of its share of a comparison; to verify leaves nothing but that."""
    done = list(zip(numbers, results, strict=True))
    return PartComparison(
        what=comparison.what,
        identity=_identity(comparison),
        measured=tuple((number, found) for number, found in done if found is not None),
        verified=tuple(number for number, found in done if found is None),
    )


class Parts:
    """What all workers of a check measured; it is asked for one comparison after the other."""

    def __init__(self, folder: Path) -> None:
        self._parts = read_parts(folder)

    def measured(self, comparison: RunComparison) -> list[Measured]:
        """Of every pair, in order."""
        expected = _identity(comparison)
        pairs, jobs = len(comparison.measure), len(comparison.measure) + len(comparison.verify)
        found: dict[int, Measured | None] = {}
        for file, part in self._parts:
            own = _own(file, part, comparison.what)
            if own.identity != expected:
                raise _other(file, part, _difference(own.identity, expected, comparison.what))
            held: list[tuple[int, Measured | None]] = [
                *own.measured,
                *((number, None) for number in own.verified),
            ]
            for number, result in held:
                is_pair = number < pairs
                if number >= jobs or number in found or is_pair != (result is not None):
                    raise _other(file, part, f"shares the {comparison.what} out in another way")
                found[number] = result
        if len(found) < jobs:
            file, part = self._parts[0]
            raise _other(file, part, f"and the others leave out some of the {comparison.what}")
        return [result for _, result in sorted(found.items()) if result is not None]


def _own(file: Path, part: MeasuredPart, what: str) -> PartComparison:
    found = [comparison for comparison in part.comparisons if comparison.what == what]
    if len(found) != 1:
        has = ", ".join(comparison.what for comparison in part.comparisons) or "nothing"
        raise _other(file, part, f"has {has}, and not once what this check needs: {what}")
    return found[0]


def _other(file: Path, part: MeasuredPart, why: str) -> UsageError:
    return UsageError(
        f"{file} is a part of another check: it {why}; give this one the traces and options that "
        f"its workers had, or remove the file and run `ttrace check ... --worker {part.worker} "
        f"--parts {file.parent}` again"
    )


def _difference(found: PartIdentity, expected: PartIdentity, what: str) -> str:
    if found.reference != expected.reference:
        return "was measured of another reference"
    if found.candidate != expected.candidate:
        return f"was measured of another trace as {what}"
    ways = "--isolated, --perturbed, --sample-ranks, or by another ttrace"
    return f"measured the {what} in another way ({ways})"


def _identity(comparison: RunComparison) -> PartIdentity:
    """What was written of every tensor is told by its own checksum."""
    units, pairs = [job.unit for job in comparison.measure], comparison.aligned.pairs()
    is_sampled = comparison.samples_ranks
    manner = xxhash.xxh3_64()
    for unit in units:
        how = (str(unit.id), unit.scale.hex(), unit.may_be_terms, unit.cells, is_sampled)
        manner.update(f"{how}\n".encode())
    for job in comparison.verify:
        manner.update(f"{job.id} {job.is_reference}\n".encode())
    return PartIdentity(
        reference=_digest(
            *(reference for reference, _ in pairs.values()),
            *(job.tensor for job in comparison.verify if job.is_reference),
        ),
        candidate=_digest(
            *(candidate for _, candidate in pairs.values()),
            *(job.tensor for job in comparison.verify if not job.is_reference),
        ),
        manner=manner.hexdigest(),
    )


def _digest(*tensors: LogicalTensor) -> str:
    """Of all records that they are made of, in order."""
    total = xxhash.xxh3_64()
    for tensor in tensors:
        total.update(f"{tensor.shape} {len(tensor.pieces)}\n".encode())
        total.update(" ".join(_marks(tensor)).encode())
    digest: str = total.hexdigest()
    return digest


def _marks(tensor: LogicalTensor) -> Iterable[str]:
    for record in records_of(tensor):
        where = record.location
        yield f"{record.rank}:{record.dtype}:{'' if where is None else where.xxh3}"
