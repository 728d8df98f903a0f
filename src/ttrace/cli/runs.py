"""Commands that run something with tracing on: demo, diff, isolate, run."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
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
    Json,
    MaxBytes,
    NoiseSeed,
    OtherKernels,
    Out,
    PayloadName,
    PerturbedRuns,
    PlanFolder,
    Reference,
    Resume,
    RunToEnd,
    Shared,
    Skip,
    SplitReductions,
    Steps,
    Strict,
    Tap,
    Timeout,
)
from ttrace.cli.screen import finish, say, stamped_folder, waiting, write_json
from ttrace.errors import CommandFailed, UsageError
from ttrace.lab.launch import prepare_folder
from ttrace.report.numbers import counted, filled

if TYPE_CHECKING:
    from ttrace.lab.experiment import Experiment
    from ttrace.lab.run import TracedRun


_SHARED = "; if other launchers run the missing ranks, give --shared to each of them"


def demo(
    bug: Annotated[str | None, typer.Option(help="Plant this bug in the candidate.")] = None,
    list_bugs: Annotated[bool, typer.Option("--list-bugs", help="Show the bugs and exit.")] = False,  # noqa: FBT002
    out: Out = None,
    dtype: Annotated[str, typer.Option(help="float32 or bfloat16.")] = "float32",
    device: Annotated[str, typer.Option(help="cpu or cuda; all ranks share one.")] = "cpu",
    html: Html = None,
    json_file: Json = None,
) -> None:
    """A small Llama: one process against 4 (dp 2 x tp 2), with a bug if you like."""
    from ttrace.demo.bugs import BUGS  # imports torch.distributed: not for every command

    if list_bugs:
        _print_bugs(BUGS, json_file)
        return
    names = [known.name for known in BUGS]
    if bug is not None and bug not in names:
        raise UsageError(
            f"no bug is called {bug!r}; `ttrace demo --list-bugs` shows: {', '.join(names)}"
        )
    if dtype not in ("float32", "bfloat16"):
        raise UsageError(f"--dtype must be float32 or bfloat16, found {dtype!r}")
    if device not in ("cpu", "cuda"):
        raise UsageError(f"--device must be cpu or cuda, found {device!r}")
    script = [sys.executable, "-m", "ttrace.demo.train", "--dtype", dtype, "--device", device]
    reference = [*script, "--microbatches", "1"]
    candidate = [*script, "--dp", "2", "--tp", "2", "--microbatches", "2"]
    if bug is not None:
        candidate += ["--bug", bug]
    with _experiment("demo", out, reference=reference, candidate=candidate) as experiment:
        result = replace(experiment, timeout_seconds=300.0).diff()
    finish(result, experiment.folder, html, json_file)


def diff(
    reference: Reference,
    candidate: Candidate,
    out: Out = None,
    steps: Steps = 1,
    skip: Skip = 0,
    every: Every = 1,
    run_to_end: RunToEnd = False,  # noqa: FBT002
    timeout: Timeout = 1800.0,
    perturbed_runs: PerturbedRuns = 1,
    split_reductions: SplitReductions = 1,
    repeat_reference: Annotated[  # noqa: FBT002
        bool, typer.Option(help="Run the reference twice, to see whether it is deterministic.")
    ] = False,
    isolate: Annotated[  # noqa: FBT002
        bool, typer.Option(help="After a failure, name the root cause (3 more runs).")
    ] = True,
    strict: Strict = False,  # noqa: FBT002
    capture: CaptureName = "full",
    accept: Accept = None,
    html: Html = None,
    json_file: Json = None,
) -> None:
    """Run a reference, its perturbed twin and a candidate with tracing on, then compare them."""
    from ttrace.analysis.accept import acceptances
    from ttrace.lab.captured import as_capture

    with _experiment(
        "diff",
        out,
        reference=reference,
        candidate=candidate,
        steps=steps,
        skip=skip,
        every=every,
        runs_to_end=run_to_end,
        timeout_seconds=timeout,
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
    perturbed_runs: PerturbedRuns = 1,
    split_reductions: SplitReductions = 1,
    strict: Strict = False,  # noqa: FBT002
    accept: Accept = None,
    html: Html = None,
    json_file: Json = None,
) -> None:
    """Isolate every module, also when a plain comparison passes: smaller errors show."""
    from ttrace.analysis.accept import acceptances

    with _experiment(
        "isolate",
        out,
        reference=reference,
        candidate=candidate,
        steps=steps,
        skip=skip,
        every=every,
        runs_to_end=run_to_end,
        timeout_seconds=timeout,
        perturbed_runs=perturbed_runs,
        split_reductions=split_reductions,
        strict=strict,
        accept=acceptances(accept),
    ) as experiment:
        result = experiment.isolate()
    finish(result, experiment.folder, html, json_file)


def run(
    command: Annotated[list[str], typer.Argument(help="The command, after --.")],
    out: Annotated[Path, typer.Option(help="Folder for the trace.")],
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
    json_file: Json = None,
) -> None:
    """Run one command with tracing on."""
    from ttrace.capture.settings import Settings
    from ttrace.lab.launch import run_command
    from ttrace.lab.run import TracedRun
    from ttrace.trace.plan import first_plan

    if plan is not None:
        first_plan(plan)
    settings = Settings(
        folder=prepare_folder(out, shared=shared, resumed=resume),
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
    traced = TracedRun(name="traced", work=command, settings=settings, **how)
    with waiting("running"):
        run_command(traced, command)
    _describe(traced, json_file)


def _describe(run: TracedRun, json_file: str | None) -> None:
    """What was recorded; a trace that is not whole is a failure of the run.

    Where launchers share the folder, ranks of the others may still be training: only `ttrace check`
    can say whether the trace is whole.
    """
    from ttrace.core.plain import to_dict
    from ttrace.report.costs import cost_line
    from ttrace.trace.cost import cost_of
    from ttrace.trace.reader import Trace

    if run.shared:
        found = sorted(path.name for path in run.folder.glob("rank-*"))
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
            f"see {run.log}{_SHARED if trace.missing_ranks else ''}"
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
def _experiment(name: str, out: Path | None, **fields: Any) -> Iterator[Experiment]:
    """An experiment whose runs and comparisons are shown on the screen while they last."""
    from ttrace.cli.telling import telling
    from ttrace.lab.experiment import Experiment
    from ttrace.lab.local import LocalExecutor

    folder = prepare_folder(out or stamped_folder(name))
    with telling(LocalExecutor()) as told:
        yield Experiment(folder=folder, execute=told, progress=told.progress, **fields)


def _print_bugs(bugs: Sequence[Any], json_file: str | None) -> None:
    for bug in bugs:
        say(f"{bug.name:<24} {bug.title} ({bug.origin})", stderr=json_file == "-")
    write_json(
        json_file, [{"name": bug.name, "title": bug.title, "origin": bug.origin} for bug in bugs]
    )
