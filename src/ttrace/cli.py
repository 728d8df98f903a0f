"""The command line: demo, diff, localize, run, check, report, show, export.

Exit codes: 0 equivalent (or done), 1 not equivalent, 2 could not decide, bad input, bad usage or
a fault of ours; 130 and 143 when interrupted or told to end.
"""

from __future__ import annotations

import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from ttrace.core.results import CheckResult
from ttrace.errors import TTraceError, UsageError
from ttrace.launch import TracedRun, prepare_folder, run_traced

if TYPE_CHECKING:
    from ttrace.experiment import Experiment

app = typer.Typer(
    help="Finds silent bugs in distributed training.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

_WIDE = 150  # chosen: piped output is read by programs and in logs, which do not wrap

Json = Annotated[
    str | None,
    typer.Option("--json", metavar="FILE", help="Write the result as JSON; - for standard output."),
]
Html = Annotated[
    Path | None, typer.Option("--html", metavar="FILE", help="Write the report as one HTML file.")
]
Steps = Annotated[int, typer.Option(min=1, help="How many training steps to record.")]
Timeout = Annotated[float, typer.Option(min=0.1, help="Seconds after which a command is stopped.")]
Calibration = Annotated[
    int, typer.Option("--calibration-runs", min=1, help="How many perturbed references to run.")
]


def main() -> NoReturn:
    """Entry point: every error that was foreseen is one message and exit code 2."""
    # Not the default, which would leave a traced command running; and as other tools do in a pipe.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        app(prog_name="ttrace")  # ends the process itself, also after bad usage
    except (TTraceError, OSError) as error:
        _say(f"ttrace: {error}", stderr=True)
    except Exception:  # noqa: BLE001  (Python's own exit code would say: not equivalent)
        traceback.print_exc()
    sys.exit(2)


@app.command()
def demo(
    bug: Annotated[str | None, typer.Option(help="Plant this bug in the candidate.")] = None,
    list_bugs: Annotated[bool, typer.Option("--list-bugs", help="Show the bugs and exit.")] = False,  # noqa: FBT002
    out: Annotated[Path | None, typer.Option(help="Folder for traces and result.")] = None,
    dtype: Annotated[str, typer.Option(help="float32 or bfloat16.")] = "float32",
    device: Annotated[str, typer.Option(help="cpu or cuda; all ranks share one.")] = "cpu",
    html: Html = None,
    json_file: Json = None,
) -> None:
    """A small Llama: one process against 4 (dp 2 x tp 2), with a bug if you like."""
    from ttrace.demo.bugs import BUGS  # imports torch.distributed: not for every command
    from ttrace.experiment import Experiment

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
    _finish(_diff(experiment, isolate=True), folder, html, json_file)


@app.command()
def diff(
    reference: Annotated[str, typer.Option(help="Shell command of the trusted run.")],
    candidate: Annotated[str, typer.Option(help="Shell command of the run to test.")],
    out: Annotated[Path | None, typer.Option(help="Folder for traces and result.")] = None,
    steps: Steps = 1,
    timeout: Timeout = 1800.0,
    calibration_runs: Calibration = 1,
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
    )
    _finish(_diff(experiment, isolate=isolate), experiment.folder, html, json_file)


@app.command()
def localize(
    reference: Annotated[str, typer.Option(help="Shell command of the trusted run.")],
    candidate: Annotated[str, typer.Option(help="Shell command of the run to test.")],
    out: Annotated[Path | None, typer.Option(help="Folder for traces and result.")] = None,
    steps: Steps = 1,
    timeout: Timeout = 1800.0,
    calibration_runs: Calibration = 1,
    html: Html = None,
    json_file: Json = None,
) -> None:
    """Isolate every module, also when a plain comparison passes: smaller errors show."""
    experiment = _experiment(
        "localize", reference, candidate, out, steps, timeout, calibration_runs
    )
    with _comparing() as progress:
        experiment.compare(_run_and_wait, progress)
        result = experiment.isolate(_run_and_wait, progress)
    _finish(result, experiment.folder, html, json_file)


@app.command(context_settings={"ignore_unknown_options": True})
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
    from ttrace.core.reader import Trace

    folder = prepare_folder(out)
    traced = TracedRun(
        name="traced",
        command=command,
        folder=folder,
        steps=steps,
        noise=noise,
        timeout_seconds=timeout,
    )
    with _waiting("running"):
        run_traced(traced)
    trace = Trace.open(folder)
    unfinished = [rank for rank, found in trace.ranks.items() if found.summary is None]
    faults = [
        fault for found in trace.ranks.values() if found.summary for fault in found.summary.faults
    ]
    _say(
        f"{len(trace.by_id())} tensors from {len(trace.ranks)} of {trace.world_size} ranks in "
        f"{folder}",
        stderr=json_file == "-",
    )
    _write_json(json_file, {"trace": str(folder), "tensors": len(trace.by_id()), "faults": faults})
    if unfinished or trace.missing_ranks or faults:
        raise UsageError(
            f"the trace is not whole: missing ranks {list(trace.missing_ranks)}, unfinished ranks "
            f"{unfinished}, {len(faults)} faults{': ' + faults[0] if faults else ''}; see "
            f"{traced.log}"
        )


@app.command()
def check(
    reference: Annotated[Path, typer.Argument(help="Trace of the trusted run.")],
    candidate: Annotated[Path, typer.Argument(help="Trace of the run to test.")],
    perturbed: Annotated[
        list[Path] | None, typer.Option(help="Trace of the reference with noise; may be repeated.")
    ] = None,
    repeated: Annotated[
        Path | None, typer.Option(help="The reference recorded once more, without noise.")
    ] = None,
    html: Html = None,
    json_file: Json = None,
) -> None:
    """Compare two traces."""
    result = _check(reference, candidate, perturbed or [], repeated)
    _finish(result, None, html, json_file)


@app.command()
def report(
    result: Annotated[Path, typer.Argument(help="A result.json.")],
    html: Html = None,
    junit: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write JUnit XML, for CI.")
    ] = None,
    markdown: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write Markdown, for an issue.")
    ] = None,
    github: Annotated[  # noqa: FBT002
        bool,
        typer.Option(
            "--github", help="Print annotations; add the Markdown to $GITHUB_STEP_SUMMARY."
        ),
    ] = False,
    tensorboard: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write TensorBoard scalars.")
    ] = None,
) -> None:
    """Make any form of report from a result; without options, print it."""
    from ttrace.report.json_file import read_result
    from ttrace.report.terminal import print_check

    found = read_result(result)
    files = {
        path: text
        for path, text in ((html, _html), (junit, _junit), (markdown, _markdown))
        if path is not None
    }
    for path, text in files.items():
        path.write_text(text(found), encoding="utf-8")
        _say(f"{path}")
    if github:
        _annotate(found)
    if tensorboard is not None:
        from ttrace.report.trackers import write_scalars

        _say(f"{write_scalars(found, tensorboard)} scalars in {tensorboard}")
    if not files and not github and tensorboard is None:
        print_check(found, _console())
    raise typer.Exit(found.exit_code)


def _html(result: CheckResult) -> str:
    from ttrace.report.html import render

    return render(result)


def _junit(result: CheckResult) -> str:
    from ttrace.report.junit import render

    return render(result)


def _markdown(result: CheckResult) -> str:
    from ttrace.report.markdown import render

    return render(result)


def _annotate(result: CheckResult) -> None:
    from ttrace.report.github import summary_file, workflow_commands

    for line in workflow_commands(result):
        sys.stdout.write(f"{line}\n")
    target = summary_file()
    if target is not None:
        with target.open("a", encoding="utf-8") as file:
            file.write(_markdown(result))


@app.command()
def show(
    trace: Annotated[Path, typer.Argument(help="Folder of a trace.")],
    tensor: Annotated[str | None, typer.Argument(help="Id of one tensor.")] = None,
    json_file: Json = None,
) -> None:
    """What is in a trace; with an id, one tensor's statistics and its map of shards."""
    from ttrace import inspection
    from ttrace.report.terminal import print_tensor, print_trace

    console = _console(stderr=json_file == "-")
    if tensor is None:
        facts = inspection.describe(trace)
        print_trace(facts, console)
        _write_json(json_file, facts)
    else:
        view = inspection.view(trace, tensor)
        print_tensor(tensor, view.tensor, view.statistics, console)
        _write_json(json_file, view.to_json())


@app.command()
def export(
    trace: Annotated[Path, typer.Argument(help="Folder of a trace.")],
    tensor: Annotated[str, typer.Argument(help="Id of one tensor.")],
    file: Annotated[Path, typer.Argument(help="The .safetensors file to write.")],
    json_file: Json = None,
) -> None:
    """Write one logical tensor, put together from all ranks, as a safetensors file."""
    from ttrace import inspection

    facts = inspection.export(trace, tensor, file)
    _say(f"{tensor} {facts['shape']} {facts['dtype']} -> {file}", stderr=json_file == "-")
    _write_json(json_file, facts)


def _experiment(
    name: str,
    reference: str,
    candidate: str,
    out: Path | None,
    steps: int,
    timeout: float,
    calibration_runs: int,
) -> Experiment:
    from ttrace.experiment import Experiment

    return Experiment(
        reference=reference,
        candidate=candidate,
        folder=prepare_folder(out or _default_folder(name)),
        steps=steps,
        timeout_seconds=timeout,
        calibration_runs=calibration_runs,
    )


def _diff(experiment: Experiment, *, isolate: bool) -> CheckResult:
    from ttrace.experiment import localized

    with _comparing() as progress:
        result = experiment.compare(_run_and_wait, progress)
    if not isolate or result.exit_code != 1:
        return result
    with _comparing() as progress:
        return localized(result, experiment.isolate(_run_and_wait, progress))


def _run_and_wait(run: TracedRun) -> None:
    with _waiting(f"running {run.name}"):
        run_traced(run)


def _check(
    reference: Path, candidate: Path, perturbed: Sequence[Path], repeated: Path | None
) -> CheckResult:
    from ttrace.pipeline import check as run_check

    with _comparing() as progress:
        return run_check(reference, candidate, perturbed, progress, repeated=repeated)


class _Rate(ProgressColumn):
    """Tensors per second."""

    def render(self, task: Task) -> Text:
        return Text("" if task.speed is None else f"{task.speed:.0f}/s")


@contextmanager
def _comparing() -> Iterator[Callable[[str, int, int], None]]:
    columns = (
        TextColumn("comparing {task.description}"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total}"),
        _Rate(),
        TimeRemainingColumn(),
    )
    bar = _progress(*columns)
    task = bar.add_task("", total=None)

    def progress(what: str, done: int, total: int) -> None:
        if done == 0:
            bar.start()  # not before: commands that run until then show a spinner of their own
        bar.update(task, description=what, completed=done, total=total)
        if done == total:
            bar.stop()

    try:
        yield progress
    finally:
        bar.stop()


def _finish(
    result: CheckResult, folder: Path | None, html: Path | None, json_file: str | None
) -> NoReturn:
    from ttrace.report.html import render
    from ttrace.report.terminal import print_check

    quiet = json_file == "-"
    if folder is not None:
        _write_json(str(folder / "result.json"), result.to_json())
        html = html or folder / "report.html"
    if html is not None:
        html.write_text(render(result), encoding="utf-8")
    print_check(result, _console(stderr=quiet))
    if html is not None:
        _say(f"report: {html}", stderr=quiet)
    if folder is not None:
        _say(f"traces and result.json in {folder}", stderr=quiet)
    _write_json(json_file, result.to_json())
    raise typer.Exit(result.exit_code)


def _print_bugs(bugs: Sequence[Any], json_file: str | None) -> None:
    for bug in bugs:
        _say(f"{bug.name:<24} {bug.title} ({bug.origin})", stderr=json_file == "-")
    _write_json(
        json_file, [{"name": bug.name, "title": bug.title, "origin": bug.origin} for bug in bugs]
    )


def _write_json(target: str | None, data: object) -> None:
    if target is None:
        return
    from ttrace.report.json_file import dumps

    text = dumps(data)
    if target == "-":
        sys.stdout.write(text)
    else:
        Path(target).write_text(text)


def _say(text: str, *, stderr: bool = False) -> None:
    _console(stderr=stderr).print(text, markup=False, emoji=False, highlight=False, soft_wrap=True)


@contextmanager
def _waiting(what: str) -> Iterator[None]:
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with _progress(*columns) as bar:
        bar.add_task(what.replace("[", r"\["), total=None)
        yield


def _progress(*columns: ProgressColumn) -> Progress:
    """Gone when the work is done, and never there when nobody looks."""
    console = _console(stderr=True)
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


def _console(*, stderr: bool = False) -> Console:
    console = Console(stderr=stderr)
    return console if console.is_terminal else Console(stderr=stderr, width=_WIDE)


def _default_folder(command: str) -> Path:
    return Path("ttrace-out") / f"{command}-{time.strftime('%Y%m%d-%H%M%S')}"
