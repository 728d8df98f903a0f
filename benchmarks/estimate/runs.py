"""Runs of the demo, small and larger: what is predicted of the larger, and what it recorded.

Enters: a case: options of a small run, of a larger one, and how the larger one is stated. Leaves:
records, bytes and seconds, predicted and measured.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from ttrace.analysis.estimate import Scenario, estimate
from ttrace.core.estimate import Estimate, Rates
from ttrace.trace.reader import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Two runs of the demo's script, and what leads from the one to the other."""

    name: str
    small: str
    large: str
    stated: Scenario
    form: str = "full"  # of both runs, unless the small one is recorded in full
    steps: int = 1
    small_form: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Of one case."""

    name: str
    form: str
    ranks: int
    predicted: Estimate
    records: int
    size_bytes: int
    recording_seconds: float


CASES = (
    Case(
        name="3 to 12 layers", small="--layers 3", large="--layers 12", stated=Scenario(layers="12")
    ),
    Case(
        name="3 to 12 layers",
        small="--layers 3",
        large="--layers 12",
        stated=Scenario(layers="12"),
        form="fingerprint",
    ),
    Case(
        name="3 to 12 layers, by a trace of values",
        small="--layers 3",
        large="--layers 12",
        stated=Scenario(layers="12"),
        form="fingerprint",
        small_form="full",
    ),
    Case(
        name="width 80 to 160",
        small="--dim 80 --layers 3",
        large="--dim 160 --layers 3",
        stated=Scenario(sizes={80: 160, 40: 80, 160: 320}),
    ),
    Case(
        name="1 to 4 ranks of DDP",
        small="--layers 3",
        large="--layers 4 --dp 4 --data-parallel ddp",
        stated=Scenario(layers="4", axes="dp=4", same_batch=True),
    ),
    Case(
        name="dp 2 x tp 2 to dp 4 x tp 2 of FSDP",
        small="--layers 3 --dp 2 --tp 2",
        large="--layers 5 --dp 4 --tp 2",
        stated=Scenario(layers="5", axes="dp=4", same_batch=True),
    ),
    Case(
        name="dp 2 x tp 2 to dp 4 x tp 2 of FSDP",
        small="--layers 3 --dp 2 --tp 2",
        large="--layers 5 --dp 4 --tp 2 --samples 16",
        stated=Scenario(layers="5", axes="dp=4"),
        form="fingerprint",
    ),
    Case(name="1 to 3 steps", small="", large="--steps 3", stated=Scenario(steps=3), steps=3),
    Case(
        name="2 to 4 microbatches",
        small="",
        large="--microbatches 4 --samples 16",
        stated=Scenario(microbatches=4),
    ),
    Case(
        name="1 rank to tp 2, which is not in the trace",
        small="--layers 3",
        large="--layers 3 --tp 2",
        stated=Scenario(axes="tp=2"),
    ),
)
DIM = "--dim 128"  # chosen: most tensors have a fingerprint that is smaller than they are


def outcome(case: Case, folder: Path, rates: Rates) -> Outcome:
    """Both runs, and the estimate in between."""
    small = recorded(folder / "small", case.small, case.small_form or case.form)
    predicted = estimate(small, replace(case.stated, capture=case.form), rates)
    large = recorded(folder / "large", case.large, case.form, case.steps)
    trace = Trace.open(large)
    ranks = trace.ranks.values()
    return Outcome(
        name=case.name,
        form=case.form,
        ranks=len(trace.ranks),
        predicted=predicted,
        records=sum(len(rank.records) for rank in ranks),
        size_bytes=sum(path.stat().st_size for path in large.glob("rank-*/*")),
        recording_seconds=max(rank.summary.recording_seconds for rank in ranks if rank.summary),
    )


def recorded(folder: Path, options: str, form: str, steps: int = 1, *, noise: int = 0) -> Path:
    """The trace of a run of the demo's script."""
    python = sys.executable
    how = ["--payload", form] if form != "full" else []
    how += ["--noise-seed", str(noise)] if noise else []
    script = [python, "-m", "ttrace.demo.train", *DIM.split(), *options.split()]
    subprocess.run(
        [
            python,
            "-m",
            "ttrace",
            "run",
            "--out",
            folder,
            "--steps",
            str(steps),
            *how,
            "--",
            *script,
        ],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        check=True,
    )
    return folder
