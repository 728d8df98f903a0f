"""The smallest errors that fingerprints show, beside those that values show.

    $ python -m studies.power.fingerprints

Runs are recorded with values once. The same traces are then written again with fingerprints, and
checked: that gives tolerances by cells. The same errors are planted into the same values, and
measured value by value and by cells; docs/reference/fingerprints.md gets both, and their ratio.
"""

from __future__ import annotations

import math
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from benchmarks.fingerprints.__main__ import PAGE
from benchmarks.pages import replaced
from studies.power.__main__ import at_95_percent
from studies.power.clean import run_model
from studies.power.inject import INJECTIONS
from studies.power.runs import Model, SharedReferences, prepare
from studies.power.sweep import TRIALS, Spoilt, recorded, smallest
from ttrace.analysis.check import check
from ttrace.analysis.compare import Measured
from ttrace.analysis.compare.sketched import SketchPair
from ttrace.core.record import Location, PayloadRef
from ttrace.core.results import CheckResult
from ttrace.measure.cells import Cells
from ttrace.measure.fingerprint import fingerprint_of
from ttrace.trace.fingerprint import FINGERPRINT
from ttrace.trace.payload import FULL
from ttrace.trace.reader import RankTrace, Trace
from ttrace.trace.sketches import Sketch
from ttrace.trace.spans import SpanReader
from ttrace.trace.writer import TraceWriter

SAMPLES = (8, 64)  # of 32 tokens: 256 and 2,048 rows
_LAYOUT = "split2"  # in one process
Sizes = dict[str, tuple[list[float], list[float]]]  # kind of error: by values, by fingerprints


def main() -> None:
    prepare()
    found = {
        (32 * samples, dtype): swept(samples, dtype)
        for samples in SAMPLES
        for dtype in ("float32", "bfloat16")
    }
    PAGE.write_text(replaced(PAGE.read_text(), "power", "\n".join(table(found))))


def swept(samples: int, dtype: str) -> Sizes:
    """The size that every trial of every kind of error needs."""
    model = Model(seed=99, dtype=dtype, layers=3, dim=128, samples=samples)
    sizes: Sizes = {kind: ([], []) for kind in INJECTIONS}
    folder = Path(tempfile.mkdtemp(prefix="power-"))
    try:
        _, result, traces = next(run_model(model, [_LAYOUT], SharedReferences(None), folder))
        by_cells = {r.id: r for r in _checked_by_cells(traces, result.perturbed).tensors}
        for judged, reference, candidate, pair in recorded(result):
            other = by_cells[judged.id]
            if other.statistics is None or not other.statistics.cells:
                continue  # too small for a fingerprint
            for kind, inject in INJECTIONS.items():
                for trial in range(TRIALS):
                    given = (reference, candidate, pair, inject, trial, model.layers)
                    for way, spoilt in enumerate((Spoilt(judged, *given), _ByCells(other, *given))):
                        sizes[kind][way].append(smallest(spoilt, "ours", 1.0))
        return sizes
    finally:
        shutil.rmtree(folder)


class _ByCells(Spoilt):
    """The same error, seen by the cells in which the check compared this tensor."""

    def measured(self, reference: torch.Tensor, spoilt: torch.Tensor) -> Measured:
        assert self._judged.statistics is not None
        sizes = tuple(self._judged.statistics.cells)
        expected, found = (_sketch(values, sizes) for values in (reference, spoilt))
        pair = SketchPair(expected, found, tuple(reference.shape), sizes)
        return Measured(statistics=pair.statistics())


def _sketch(values: torch.Tensor, sizes: tuple[int, ...]) -> Sketch:
    found = fingerprint_of(values.contiguous(), Cells(sizes, (0,) * len(sizes)))
    return Sketch(
        sums=found.sums,
        total=found.total,
        squares=found.squares if math.isfinite(found.squares) else None,
        peak=found.peak,
    )


def _checked_by_cells(traces: Path, perturbed: Sequence[str]) -> CheckResult:
    """The check of the same runs, as if they had recorded fingerprints."""
    names = ["reference", "candidate", *(Path(path).name for path in perturbed)]
    for name in names:
        _rewrite(traces / name, traces / f"{name}-cells")
    first, second, *noisy = (traces / f"{name}-cells" for name in names)
    return check(first, second, perturbed=noisy)


def _rewrite(trace: Path, into: Path) -> None:
    with SpanReader(trace) as spans:
        for rank in Trace.open(trace).ranks.values():
            _rewrite_rank(rank, spans, into)


def _rewrite_rank(rank: RankTrace, spans: SpanReader, into: Path) -> None:
    writer = TraceWriter(into, rank.info)
    known: dict[Location, tuple[Location, PayloadRef | None]] = {}
    for record in rank.records:
        if record.location is None:
            writer.note(record)
        elif record.location in known:
            place, payload = known[record.location]
            moved = record.at(place)
            writer.note(moved if payload is None else moved.stored_as(payload))
        else:
            values = spans.load(record)
            chosen = FINGERPRINT if FINGERPRINT.takes(values, asked=True) else FULL
            written = writer.write(record, values, chosen)
            assert written.location is not None
            known[record.location] = written.location, written.payload
    writer.end_step(0)
    assert rank.summary is not None
    writer.close(rank.summary)


def table(found: dict[tuple[int, str], Sizes]) -> Iterator[str]:
    """Sizes that 95% of the trials need."""
    yield "| rows | dtype | error | by values | by fingerprints | ratio |"
    yield "|---|---|---|---|---|---|"
    for (rows, dtype), kinds in found.items():
        for kind, (values, cells) in kinds.items():
            full, small = at_95_percent(values), at_95_percent(cells)
            ratio = f"{small / full:.1f}"
            yield f"| {rows:,} | {dtype} | {kind} | {full:.2g} | {small:.2g} | {ratio} |"


if __name__ == "__main__":
    main()
