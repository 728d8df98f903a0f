"""An experiment as one call: `ttrace.diff(reference, candidate, out=...)`."""

from __future__ import annotations

from pathlib import Path

from ttrace.analysis.accept import AcceptList, acceptances
from ttrace.analysis.tasks import Progress
from ttrace.core.results import CheckResult
from ttrace.lab.captured import Capture, as_capture
from ttrace.lab.experiment import Experiment
from ttrace.lab.launch import prepare_folder
from ttrace.lab.local import LocalExecutor
from ttrace.lab.run import Elsewhere, Executor, Work
from ttrace.trace.store import local_path


def diff(
    reference: Work,
    candidate: Work,
    *,
    out: Path | str,
    steps: int = 1,
    skip: int = 0,
    every: int = 1,
    run_to_end: bool = False,
    perturbed_runs: int = 1,
    repeat_reference: bool = False,
    split_reductions: int = 1,
    isolate: bool = True,
    strict: bool = False,
    timeout_seconds: float = 1800.0,
    elsewhere: Elsewhere | None = None,
    execute: Executor | None = None,
    progress: Progress | None = None,
    accept: AcceptList | None = None,
    capture: str = Capture.FULL,
) -> CheckResult:
    """Run both sides with tracing on, compare them, and name the root cause of a failure.

    A side is a shell command, a list of words, or a `Function` on several ranks; its script calls
    `ttrace.attach`. Traces stay in the folder `out`, empty or not there yet. After `skip` steps
    `every` n-th is recorded; then a command is stopped, unless `run_to_end`. `elsewhere` tells how
    one is treated that only starts a job, `execute` runs things in another way. `isolate=False`
    saves runs. `strict` fails what is borderline, or differs in a module without an effect outside,
    `accept` lists what may differ. `capture`: "full", "fingerprint", "auto" (values if isolated).
    """
    experiment = Experiment(
        reference=reference,
        candidate=candidate,
        folder=prepare_folder(local_path(out)),
        steps=steps,
        skip=skip,
        every=every,
        runs_to_end=run_to_end,
        timeout_seconds=timeout_seconds,
        elsewhere=elsewhere or Elsewhere(),
        perturbed_runs=perturbed_runs,
        repeats_reference=repeat_reference,
        split_reductions=split_reductions,
        strict=strict,
        execute=execute or LocalExecutor(),
        progress=progress,
        accept=acceptances(accept),
        capture=as_capture(capture),
    )
    return experiment.diff() if isolate else experiment.compare()
