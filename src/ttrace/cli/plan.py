"""The command that plans runs: what an isolated one overwrites, or what any will cost."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ttrace.cli.options import CaptureName, Json, PerturbedRuns, Steps, as_size
from ttrace.cli.screen import OUT_FOLDER, say, waiting, write_json
from ttrace.errors import UsageError
from ttrace.report.numbers import counted
from ttrace.trace.store import PathOrUrl, local_path, place_of

if TYPE_CHECKING:
    from ttrace.analysis.estimate import Scenario

_CUDA = "cuda"


_Trace = Annotated[
    str, typer.Argument(help="Trace of `ttrace run --tap`, or its URL; any to estimate from.")
]
_Run = Annotated[
    str | None,
    typer.Argument(help="Plain trace of the run to isolate, or its URL; not to estimate."),
]
_Out = Annotated[
    Path | None,
    typer.Option(
        parser=local_path, metavar="PATH", help="Folder for the plans; or where traces would go."
    ),
]
_Estimate = Annotated[
    bool, typer.Option("--estimate", help="Say what a stated run would cost, and run nothing.")
]
_Layers = Annotated[
    str | None, typer.Option(metavar="N", help="Estimate: layers; LIST=N of several lists.")
]
_Size = Annotated[
    list[str] | None,
    typer.Option(metavar="OLD=NEW", help="Estimate: dims of a size get another; repeatable."),
]
_Axes = Annotated[
    str | None, typer.Option(metavar="tp=8,dp=4", help="Estimate: sizes of mesh axes.")
]
_Ranks = Annotated[
    int | None, typer.Option(min=1, help="Estimate: ranks; those beyond the axes are dp.")
]
_SameBatch = Annotated[
    bool, typer.Option("--same-batch", help="Estimate: divide the recorded batch among dp.")
]
_Microbatches = Annotated[int | None, typer.Option(min=1, help="Estimate: microbatches of a step.")]
_Workers = Annotated[int, typer.Option(min=1, help="Estimate: workers of the check.")]
_Rates = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Estimate: rates of another machine, by its --json."),
]
_DiskRate = Annotated[
    int | None,
    typer.Option(metavar="SIZE", parser=as_size, help="Estimate: bytes a second, as 2GB."),
]


def plan(
    reference: _Trace,
    run: _Run = None,
    out: _Out = None,
    estimate: _Estimate = False,  # noqa: FBT002
    capture: CaptureName = "full",
    layers: _Layers = None,
    size: _Size = None,
    axes: _Axes = None,
    ranks: _Ranks = None,
    same_batch: _SameBatch = False,  # noqa: FBT002
    microbatches: _Microbatches = None,
    steps: Steps = 1,
    perturbed_runs: PerturbedRuns = 1,
    workers: _Workers = 1,
    rates: _Rates = None,
    disk_rate: _DiskRate = None,
    json_file: Json = None,
) -> None:
    """Write the plans by which `ttrace run --plan` isolates a run, or estimate what runs cost."""
    if not estimate:
        _write_plans(reference, run, out, json_file)
        return
    if run is not None:
        raise UsageError(f"--estimate takes one trace, found {reference} and {run}")
    from ttrace.analysis.estimate import Scenario
    from ttrace.analysis.estimate.resized import asked_sizes

    scenario = Scenario(
        capture=capture,
        axes=axes,
        ranks=ranks,
        layers=layers,
        sizes=asked_sizes(size or []),
        microbatches=microbatches,
        steps=steps,
        perturbed_runs=perturbed_runs,
        workers=workers,
        same_batch=same_batch,
    )
    place = place_of(reference)
    _say_estimate(place, scenario, out or OUT_FOLDER, rates, disk_rate, json_file)


def _say_estimate(
    trace: PathOrUrl,
    scenario: Scenario,
    folder: Path,
    rates_file: Path | None,
    disk_rate: int | None,
    json_file: str | None,
) -> None:
    from ttrace.analysis.estimate import estimate
    from ttrace.core.plain import to_dict
    from ttrace.lab.captured import as_capture
    from ttrace.lab.rates import measured_rates, read_rates
    from ttrace.report.estimate import estimate_lines
    from ttrace.trace.reader import devices_of

    form = as_capture(scenario.capture)
    device = "cpu" if devices_of(trace) == {"cpu"} else _CUDA
    if rates_file is not None:
        rates = read_rates(rates_file, form)
    else:
        with waiting("measuring this machine"):
            rates = measured_rates(form, form.payload, device, folder)
    if disk_rate is not None:
        rates = replace(rates, disk_rate=float(disk_rate))
    with waiting("estimating"):
        found = estimate(trace, scenario, rates)
    for about, text in estimate_lines(found):
        say(f"  {about:<11} {text}", stderr=json_file == "-")
    write_json(json_file, to_dict(found))


def _write_plans(reference: str, run: str | None, out: Path | None, json_file: str | None) -> None:
    from ttrace.analysis.isolate import write_plans
    from ttrace.lab.launch import prepare_folder

    if run is None or out is None:
        raise UsageError(
            "plans need the trace of `ttrace run --tap`, a plain trace of the run to isolate and "
            "--out; with --estimate one trace is enough"
        )
    write_plans(place_of(reference), place_of(run), prepare_folder(out))
    files = len(list(out.glob("plan-*.json")))
    say(f"plans of {counted(files, 'rank')} in {out}", stderr=json_file == "-")
    write_json(json_file, {"plans": str(out), "ranks": files})
