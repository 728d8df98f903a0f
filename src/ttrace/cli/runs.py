"""Commands that run something with tracing on: demo, diff, localize, run."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ttrace.cli.options import (
    Calibration,
    Candidate,
    Html,
    Json,
    Out,
    Reference,
    Split,
    Steps,
    Timeout,
)
from ttrace.cli.screen import comparing, finish, say, waiting, write_json
from ttrace.core.results import CheckResult
from ttrace.errors import UsageError
from ttrace.lab.launch import TracedRun, prepare_folder, run_traced

if TYPE_CHECKING:
    from ttrace.lab.experiment import Experiment


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
    from ttrace.lab.experiment import Experiment

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
    folder = prepare_folder(out or _default_folder("demo"))
    experiment = Experiment(
        reference=reference, candidate=candidate, folder=folder, timeout_seconds=300.0
    )
    finish(_diff(experiment, isolate=True), folder, html, json_file)


def diff(
    reference: Reference,
    candidate: Candidate,
    out: Out = None,
    steps: Steps = 1,
    timeout: Timeout = 1800.0,
    calibration_runs: Calibration = 1,
    split_reductions: Split = 1,
    repeat_reference: Annotated[  # noqa: FBT002
        bool, typer.Option(help="Run the reference twice, to see whether it is deterministic.")
    ] = False,
    isolate: Annotated[  # noqa: FBT002
        bool, typer.Option(help="After a failure, name what is wrong by itself (3 more runs).")
    ] = True,
    html: Html = None,
    json_file: Json = None,
) -> None:
    """Run a reference, its perturbed twin and a candidate with tracing on, then compare them."""
    experiment = replace(
        _experiment("diff", reference, candidate, out, steps, timeout, calibration_runs),
        repeats_reference=repeat_reference,
        split_reductions=split_reductions,
    )
    finish(_diff(experiment, isolate=isolate), experiment.folder, html, json_file)


def localize(
    reference: Reference,
    candidate: Candidate,
    out: Out = None,
    steps: Steps = 1,
    timeout: Timeout = 1800.0,
    calibration_runs: Calibration = 1,
    split_reductions: Split = 1,
    html: Html = None,
    json_file: Json = None,
) -> None:
    """Isolate every module, also when a plain comparison passes: smaller errors show."""
    experiment = replace(
        _experiment("localize", reference, candidate, out, steps, timeout, calibration_runs),
        split_reductions=split_reductions,
    )
    with comparing() as progress:
        experiment.compare(_run_and_wait, progress)
        result = experiment.isolate(_run_and_wait, progress)
    finish(result, experiment.folder, html, json_file)


def run(
    command: Annotated[list[str], typer.Argument(help="The command, after --.")],
    out: Annotated[Path, typer.Option(help="Folder for the trace.")],
    steps: Steps = 1,
    noise: Annotated[
        int | None, typer.Option(min=0, help="Seed: record a perturbed reference.")
    ] = None,
    timeout: Timeout = 1800.0,
    json_file: Json = None,
) -> None:
    """Run one command with tracing on."""
    from ttrace.trace.reader import Trace

    folder = prepare_folder(out)
    traced = TracedRun(
        name="traced",
        command=command,
        folder=folder,
        steps=steps,
        noise=noise,
        timeout_seconds=timeout,
    )
    with waiting("running"):
        run_traced(traced)
    trace = Trace.open(folder)
    unfinished = [rank for rank, found in trace.ranks.items() if found.summary is None]
    faults = [
        fault for found in trace.ranks.values() if found.summary for fault in found.summary.faults
    ]
    say(
        f"{len(trace.by_id())} tensors from {len(trace.ranks)} of {trace.world_size} ranks in "
        f"{folder}",
        stderr=json_file == "-",
    )
    write_json(json_file, {"trace": str(folder), "tensors": len(trace.by_id()), "faults": faults})
    if unfinished or trace.missing_ranks or faults:
        raise UsageError(
            f"the trace is not whole: missing ranks {list(trace.missing_ranks)}, unfinished ranks "
            f"{unfinished}, {len(faults)} faults{': ' + faults[0] if faults else ''}; see "
            f"{traced.log}"
        )


def _experiment(
    name: str,
    reference: str,
    candidate: str,
    out: Path | None,
    steps: int,
    timeout: float,
    calibration_runs: int,
) -> Experiment:
    from ttrace.lab.experiment import Experiment

    return Experiment(
        reference=reference,
        candidate=candidate,
        folder=prepare_folder(out or _default_folder(name)),
        steps=steps,
        timeout_seconds=timeout,
        calibration_runs=calibration_runs,
    )


def _diff(experiment: Experiment, *, isolate: bool) -> CheckResult:
    from ttrace.lab.experiment import localized

    with comparing() as progress:
        result = experiment.compare(_run_and_wait, progress)
    if not isolate or result.exit_code != 1:
        return result
    with comparing() as progress:
        return localized(result, experiment.isolate(_run_and_wait, progress))


def _run_and_wait(run: TracedRun) -> None:
    with waiting(f"running {run.name}"):
        run_traced(run)


def _print_bugs(bugs: Sequence[Any], json_file: str | None) -> None:
    for bug in bugs:
        say(f"{bug.name:<24} {bug.title} ({bug.origin})", stderr=json_file == "-")
    write_json(
        json_file, [{"name": bug.name, "title": bug.title, "origin": bug.origin} for bug in bugs]
    )


def _default_folder(command: str) -> Path:
    return Path("ttrace-out") / f"{command}-{time.strftime('%Y%m%d-%H%M%S')}"
