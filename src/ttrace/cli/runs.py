"""Commands that run something with tracing on: diff, isolate, run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ttrace.cli.options import (
    Accept,
    Candidate,
    CaptureName,
    Every,
    Html,
    IsolateFailures,
    Json,
    MaxBytes,
    NoiseSeed,
    OtherKernels,
    Out,
    PayloadName,
    PerturbedRuns,
    PlanFolder,
    QueueTimeout,
    Reference,
    RepeatReference,
    Resume,
    RunsElsewhere,
    RunToEnd,
    Shared,
    Skip,
    SplitReductions,
    Steps,
    Stop,
    Strict,
    Tap,
    Timeout,
)
from ttrace.cli.screen import finish, say, stamped_folder, write_json
from ttrace.cli.telling import hearing, telling
from ttrace.errors import CommandFailed
from ttrace.lab.launch import prepare_folder
from ttrace.report.numbers import counted, filled

if TYPE_CHECKING:
    from ttrace.lab.experiment import Experiment
    from ttrace.lab.run import TracedRun


_SHARED = "; if other launchers run the missing ranks, give --shared to each of them"


def diff(
    reference: Reference,
    candidate: Candidate,
    out: Out = None,
    steps: Steps = 1,
    skip: Skip = 0,
    every: Every = 1,
    run_to_end: RunToEnd = False,  # noqa: FBT002
    timeout: Timeout = 1800.0,
    elsewhere: RunsElsewhere = None,
    queue_timeout: QueueTimeout = 3600.0,
    stop: Stop = None,
    perturbed_runs: PerturbedRuns = 1,
    split_reductions: SplitReductions = 1,
    repeat_reference: RepeatReference = False,  # noqa: FBT002
    isolate: IsolateFailures = True,  # noqa: FBT002
    strict: Strict = False,  # noqa: FBT002
    capture: CaptureName = "full",
    accept: Accept = None,
    html: Html = None,
    json_file: Json = None,
) -> None:
    """Run a reference, its perturbed twin and a candidate with tracing on, then compare them."""
    from ttrace.analysis.accept import acceptances
    from ttrace.lab.captured import as_capture
    from ttrace.lab.run import Elsewhere

    with shown_experiment(
        "diff",
        out,
        reference=reference,
        candidate=candidate,
        steps=steps,
        skip=skip,
        every=every,
        runs_to_end=run_to_end,
        timeout_seconds=timeout,
        elsewhere=Elsewhere(asked=elsewhere, queue_seconds=queue_timeout, stop=stop),
        perturbed_runs=perturbed_runs,
        split_reductions=split_reductions,
        repeats_reference=repeat_reference,
        strict=strict,
        capture=as_capture(capture),
        accept=acceptances(accept),
    ) as experiment:
        result = experiment.diff() if isolate else experiment.compare()
    finish(result, experiment.folder, html, json_file)


def isolate(
    reference: Reference,
    candidate: Candidate,
    out: Out = None,
    steps: Steps = 1,
    skip: Skip = 0,
    every: Every = 1,
    run_to_end: RunToEnd = False,  # noqa: FBT002
    timeout: Timeout = 1800.0,
    elsewhere: RunsElsewhere = None,
    queue_timeout: QueueTimeout = 3600.0,
    stop: Stop = None,
    perturbed_runs: PerturbedRuns = 1,
    split_reductions: SplitReductions = 1,
    strict: Strict = False,  # noqa: FBT002
    accept: Accept = None,
    html: Html = None,
    json_file: Json = None,
) -> None:
    """Isolate every module, also when a plain comparison passes: smaller errors show."""
    from ttrace.analysis.accept import acceptances
    from ttrace.lab.run import Elsewhere

    with shown_experiment(
        "isolate",
        out,
        reference=reference,
        candidate=candidate,
        steps=steps,
        skip=skip,
        every=every,
        runs_to_end=run_to_end,
        timeout_seconds=timeout,
        elsewhere=Elsewhere(asked=elsewhere, queue_seconds=queue_timeout, stop=stop),
        perturbed_runs=perturbed_runs,
        split_reductions=split_reductions,
        strict=strict,
        accept=acceptances(accept),
    ) as experiment:
        result = experiment.isolate()
    finish(result, experiment.folder, html, json_file)


def run(
    command: Annotated[list[str], typer.Argument(help="The command, after --.")],
    out: Annotated[str, typer.Option(help="Folder for the trace, or its URL.")],
    steps: Steps = 1,
    skip: Skip = 0,
    every: Every = 1,
    run_to_end: RunToEnd = False,  # noqa: FBT002
    noise_seed: NoiseSeed = None,
    other_kernels: OtherKernels = False,  # noqa: FBT002
    split_reductions: SplitReductions = 1,
    tap: Tap = False,  # noqa: FBT002
    plan: PlanFolder = None,
    payload: PayloadName = None,
    max_bytes: MaxBytes = None,
    resume: Resume = False,  # noqa: FBT002
    shared: Shared = False,  # noqa: FBT002
    timeout: Timeout = 1800.0,
    elsewhere: RunsElsewhere = None,
    queue_timeout: QueueTimeout = 3600.0,
    stop: Stop = None,
    json_file: Json = None,
) -> None:
    """Run one command with tracing on."""
    from ttrace.capture.settings import Settings
    from ttrace.lab.launch import prepare_place, run_command
    from ttrace.lab.run import Elsewhere, TracedRun
    from ttrace.trace.plan import first_plan

    if plan is not None:
        first_plan(plan)
    settings = Settings(
        folder=prepare_place(out, shared=shared, resumed=resume),
        steps=steps,
        skip=skip,
        every=every,
        max_bytes=max_bytes,
        resume=resume,
        noise_seed=noise_seed,
        other_kernels=other_kernels,
        split=split_reductions,
        tap=tap,
        plan=plan,
        payload=payload,
    )
    how: dict[str, Any] = {"timeout_seconds": timeout, "shared": shared, "to_end": run_to_end}
    how |= {"elsewhere": Elsewhere(asked=elsewhere, queue_seconds=queue_timeout, stop=stop)}
    traced = TracedRun(name="traced", work=command, settings=settings, **how)
    with hearing("running") as tell:
        run_command(replace(traced, tell=tell), command)
    _describe(traced, json_file)


def _describe(run: TracedRun, json_file: str | None) -> None:
    """What was recorded; a trace that is not whole is a failure of the run.

    Where launchers share the folder, ranks of the others may still be training: only `ttrace check`
    can say whether the trace is whole.
    """
    from ttrace.core.plain import to_dict
    from ttrace.report.costs import cost_line
    from ttrace.trace.cost import cost_of
    from ttrace.trace.files import files_of, rank_names
    from ttrace.trace.reader import Trace

    if run.shared:
        found = rank_names(files_of(run.folder))
        say(f"{counted(len(found), 'rank')} so far in {run.folder}", stderr=json_file == "-")
        write_json(json_file, {"trace": str(run.folder), "ranks": len(found)})
        return
    trace = Trace.open(run.folder)
    unfinished = [rank for rank, found in trace.ranks.items() if found.summary is None]
    faults = [
        fault for found in trace.ranks.values() if found.summary for fault in found.summary.faults
    ]
    say(
        f"{counted(len(trace.by_id()), 'tensor')} from {len(trace.ranks)} of "
        f"{counted(trace.world_size, 'rank')} in "
        f"{run.folder}",
        stderr=json_file == "-",
    )
    data = {"trace": str(run.folder), "tensors": len(trace.by_id()), "faults": faults}
    if (cost := cost_of(run.folder)) is not None:
        say(cost_line(cost), stderr=json_file == "-")
        data |= {"cost": to_dict(cost)}
    write_json(json_file, data)
    made = min((found.summary.steps for found in trace.ranks.values() if found.summary), default=0)
    if unfinished or trace.missing_ranks or faults:
        raise CommandFailed(
            f"the trace is not whole: missing ranks {list(trace.missing_ranks)}, unfinished ranks "
            f"{unfinished}, {counted(len(faults), 'fault')}{': ' + faults[0] if faults else ''}; "
            f"see {run.kept_log}{_SHARED if trace.missing_ranks else ''}"
        )
    if made < run.settings.steps:
        raise CommandFailed(
            filled(
                "{made} of {asked:step} {made:|was/were} made: let the script make more, or ask "
                "for fewer with --steps",
                made=made,
                asked=run.settings.steps,
            )
        )


@contextmanager
def shown_experiment(name: str, out: Path | None, **fields: Any) -> Iterator[Experiment]:
    """An experiment whose runs and comparisons are shown on the screen while they last."""
    from ttrace.lab.experiment import Experiment
    from ttrace.lab.local import LocalExecutor

    folder = prepare_folder(out or stamped_folder(name))
    with telling(LocalExecutor()) as told:
        yield Experiment(folder=folder, execute=told, progress=told.progress, **fields)
