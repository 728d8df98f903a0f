"""Options that several commands have, each said once."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from ttrace.report.forms import FORMS
from ttrace.trace.store import local_path

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}


def as_size(text: str) -> int:
    """20GB as a number."""
    match = re.fullmatch(r"(\d{1,15}(?:\.\d{1,6})?)\s*([KMGT]?)B?", text.strip().upper())
    if match is None:
        raise typer.BadParameter(f"{text!r} is no size: expected one such as 500MB or 20GB")
    return int(float(match[1]) * _UNITS[match[2]])


Json = Annotated[str | None, typer.Option("--json", metavar="FILE", help=FORMS["json"].help)]
Html = Annotated[str | None, typer.Option("--html", metavar="FILE", help=FORMS["html"].help)]
Out = Annotated[
    Path | None,
    typer.Option(parser=local_path, metavar="PATH", help="Folder for traces and result."),
]
Accept = Annotated[
    Path | None, typer.Option("--accept", metavar="FILE", help="TOML list of what may differ.")
]
Reference = Annotated[str, typer.Option(help="Shell command of the trusted run.")]
Candidate = Annotated[str, typer.Option(help="Shell command of the run to test.")]
Steps = Annotated[int, typer.Option(min=1, help="How many training steps to record.")]
Skip = Annotated[int, typer.Option(min=0, help="How many steps to let pass before those.")]
Every = Annotated[int, typer.Option(min=1, help="Record every n-th step of those that follow.")]
RunToEnd = Annotated[
    bool,
    typer.Option("--run-to-end", help="Do not stop a command when its steps are recorded."),
]
NoiseSeed = Annotated[
    int | None, typer.Option(min=0, help="Record a perturbed reference, with this noise.")
]
Tap = Annotated[bool, typer.Option("--tap", help="Record the reference of isolated runs.")]
Resume = Annotated[
    bool, typer.Option("--resume", help="Go on with the trace of a run that was killed.")
]
Shared = Annotated[
    bool, typer.Option("--shared", help="Other launchers of this run write there too.")
]
PayloadName = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Store tensors in a form of an installed package."),
]
CaptureName = Annotated[
    str,
    typer.Option(
        "--capture",
        metavar="FORM",
        help="What runs record: full, fingerprint, or auto (values only where it isolates).",
    ),
]
MaxBytes = Annotated[
    int | None,
    typer.Option(
        metavar="SIZE",
        parser=as_size,
        help="What the trace of all ranks may take on disk, such as 20GB.",
    ),
]
Timeout = Annotated[float, typer.Option(min=0.1, help="Seconds after which a command is stopped.")]
RunsElsewhere = Annotated[
    bool | None,
    typer.Option(
        "--elsewhere/--no-elsewhere",
        help="Ranks run elsewhere, and the command may end before them: wait for their traces. "
        "Without this, sbatch, kubectl apply and ray job submit --no-wait are recognised.",
    ),
]
QueueTimeout = Annotated[
    float,
    typer.Option(min=0.1, help="Seconds after which a rank elsewhere must have begun."),
]
Stop = Annotated[
    str | None,
    typer.Option(
        metavar="COMMAND",
        help="Shell command that ends what runs elsewhere; it reads what the command wrote.",
    ),
]
OtherKernels = Annotated[
    bool,
    typer.Option("--other-kernels", help="Noise as between kernels of two kinds of devices."),
]
PlanFolder = Annotated[
    Path | None,
    typer.Option(metavar="FOLDER", help="Isolate the run by the plans of `ttrace plan`."),
]
SplitReductions = Annotated[
    int,
    typer.Option(
        "--split-reductions",
        min=1,
        help="Perturbed references add matmuls in so many rounded parts, as tensor-parallel "
        "ranks do: raise it where correct ones are further away than noise explains.",
    ),
]
PerturbedRuns = Annotated[
    int, typer.Option("--perturbed-runs", min=1, help="How many perturbed references to run.")
]
RepeatReference = Annotated[
    bool, typer.Option(help="Run the reference twice, to see whether it is deterministic.")
]
IsolateFailures = Annotated[
    bool,
    typer.Option(
        help="After a failure, and where modules quantise, isolate every module (3 more runs)."
    ),
]
Strict = Annotated[
    bool,
    typer.Option(
        "--strict",
        help="Fail also what is borderline, or differs inside a module without an effect.",
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(min=1, help="How many processes measure; all cores where there is much to read."),
]
EngineName = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="Who measures: serial, processes, ray[:ADDRESS], or another."
    ),
]
SampleRanks = Annotated[
    bool,
    typer.Option(
        "--sample-ranks",
        help="Read no more ranks than hold every part of every tensor; compare no replicas.",
    ),
]
