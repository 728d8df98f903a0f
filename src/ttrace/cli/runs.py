"""Commands that run something with tracing on: diff, isolate, run, demo."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ttrace.capture.settings import Settings
from ttrace.cli import options
from ttrace.cli.screen import finish, hearing, say, stamped_folder, telling, write_json
from ttrace.core.door import to_dict
from ttrace.errors import CommandFailed, UsageError
from ttrace.lab.launch import LocalExecutor, prepare_folder, prepare_place, run_command
from ttrace.lab.options import ComparisonOptions, RunOptions
from ttrace.lab.run import TracedRun
from ttrace.report.checkup import cost_line
from ttrace.report.numbers import counted, filled

if TYPE_CHECKING:
    from ttrace.lab.experiment import Experiment
    from ttrace.trace.reader import Trace

_SHARED = "; if other launchers run the missing ranks, give --shared to each of them"


@options.takes(ComparisonOptions)
def diff(
    reference: options.Reference,
    candidate: options.Candidate,
    out: options.Out = None,
    isolate: options.IsolateFailures = True,  # noqa: FBT002
    html: options.Html = None,
    json_file: options.Json = None,
    **chosen: Any,
) -> None:
    """Run a reference, its perturbed twin and a candidate with tracing on, then compare them."""
    sides = {"reference": reference, "candidate": candidate}
    with shown_experiment("diff", out, **sides, **chosen) as experiment:
        result = experiment.diff() if isolate else experiment.compare()
    finish(result, experiment.folder, html, json_file)


# An isolated run has values always, and no reference to repeat.
@options.takes(ComparisonOptions, without=("capture", "repeat_reference"))
def isolate(
    reference: options.Reference,
    candidate: options.Candidate,
    out: options.Out = None,
    html: options.Html = None,
    json_file: options.Json = None,
    **chosen: Any,
) -> None:
    """Isolate every module, also when a plain comparison passes: smaller errors show."""
    sides = {"reference": reference, "candidate": candidate}
    with shown_experiment("isolate", out, **sides, **chosen) as experiment:
        result = experiment.isolate()
    finish(result, experiment.folder, html, json_file)


@options.takes(RunOptions)
def run(
    command: Annotated[list[str], typer.Argument(help="The command, after --.")],
    out: Annotated[str, typer.Option(help="Folder for the trace, or its URL.")],
    noise_seed: options.NoiseSeed = None,
    other_kernels: options.OtherKernels = False,  # noqa: FBT002
    split_reductions: options.SplitReductions = 1,
    tap: options.Tap = False,  # noqa: FBT002
    plan: options.PlanFolder = None,
    payload: options.PayloadName = None,
    max_bytes: options.MaxBytes = None,
    resume: options.Resume = False,  # noqa: FBT002
    shared: options.Shared = False,  # noqa: FBT002
    json_file: options.Json = None,
    **chosen: Any,
) -> None:
    """Run one command with tracing on."""
    from ttrace.trace.plan import first_plan

    if plan is not None:
        first_plan(plan)
    settings = Settings(
        folder=prepare_place(out, shared=shared, resumed=resume),
        **{name: chosen.pop(name) for name in ("steps", "skip", "every")},
        max_bytes=max_bytes,
        resume=resume,
        noise_seed=noise_seed,
        other_kernels=other_kernels,
        split=split_reductions,
        tap=tap,
        plan=plan,
        payload=payload,
    )
    to_end = chosen.pop("run_to_end")
    traced = TracedRun(
        name="traced", work=command, settings=settings, shared=shared, to_end=to_end, **chosen
    )
    with hearing("running") as tell:
        run_command(replace(traced, tell=tell), command)
    _describe(traced, json_file)


def _describe(run: TracedRun, json_file: str | None) -> None:
    """What was recorded; a trace that is not whole is a failure of the run.

    Where launchers share the folder, ranks of the others may still be training: only `ttrace check`
    can say whether the trace is whole.
    """
    from ttrace.trace.files import files_of, rank_names
    from ttrace.trace.progress import cost_of
    from ttrace.trace.reader import Trace

    if run.shared:
        found = rank_names(files_of(run.folder))
        say(f"{counted(len(found), 'rank')} so far in {run.folder}", stderr=json_file == "-")
        write_json(json_file, {"trace": str(run.folder), "ranks": len(found)})
        return
    trace = Trace.open(run.folder)
    summaries = [found.summary for found in trace.ranks.values() if found.summary is not None]
    faults = [fault for summary in summaries for fault in summary.faults]
    ranks = f"{len(trace.ranks)} of {counted(trace.world_size, 'rank')}"
    tensors = counted(len(trace.by_id()), "tensor")
    say(f"{tensors} from {ranks} in {run.folder}", stderr=json_file == "-")
    data = {"trace": str(run.folder), "tensors": len(trace.by_id()), "faults": faults}
    if (cost := cost_of(run.folder)) is not None:
        say(cost_line(cost), stderr=json_file == "-")
        data |= {"cost": to_dict(cost)}
    write_json(json_file, data)
    _require_whole(run, trace, faults)
    made = min((summary.steps for summary in summaries), default=0)
    if made < run.settings.steps:
        raise CommandFailed(
            filled(
                "{made} of {asked:step} {made:|was/were} made: let the script make more, or ask "
                "for fewer with --steps",
                made=made,
                asked=run.settings.steps,
            )
        )


def _require_whole(run: TracedRun, trace: Trace, faults: list[str]) -> None:
    unfinished = [rank for rank, found in trace.ranks.items() if found.summary is None]
    if unfinished or trace.missing_ranks or faults:
        raise CommandFailed(
            f"the trace is not whole: missing ranks {list(trace.missing_ranks)}, unfinished ranks "
            f"{unfinished}, {counted(len(faults), 'fault')}{': ' + faults[0] if faults else ''}; "
            f"see {run.kept_log}{_SHARED if trace.missing_ranks else ''}"
        )


@contextmanager
def shown_experiment(name: str, out: Path | None, **fields: Any) -> Iterator[Experiment]:
    """An experiment whose runs and comparisons are shown on the screen while they last."""
    from ttrace.lab.experiment import Experiment

    folder = prepare_folder(out or stamped_folder(name))
    with telling(LocalExecutor()) as told:
        yield Experiment(folder=folder, execute=told, progress=told.progress, **fields)


def demo(
    bug: Annotated[str | None, typer.Option(help="Plant this bug in the candidate.")] = None,
    list_bugs: Annotated[bool, typer.Option("--list-bugs", help="Show the bugs and exit.")] = False,  # noqa: FBT002
    out: options.Out = None,
    dtype: Annotated[str, typer.Option(help="float32 or bfloat16.")] = "float32",
    device: Annotated[str, typer.Option(help="cpu or cuda; all ranks share one.")] = "cpu",
    html: options.Html = None,
    json_file: options.Json = None,
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
    with shown_experiment("demo", out, reference=reference, candidate=candidate) as experiment:
        result = replace(experiment, timeout_seconds=300.0).diff()
    finish(result, experiment.folder, html, json_file)


def _print_bugs(bugs: Sequence[Any], json_file: str | None) -> None:
    for bug in bugs:
        say(f"{bug.name:<24} {bug.title} ({bug.origin})", stderr=json_file == "-")
    write_json(
        json_file, [{"name": bug.name, "title": bug.title, "origin": bug.origin} for bug in bugs]
    )
