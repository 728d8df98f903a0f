"""Options that several commands have, each said once.

What `ttrace.diff` takes as well is a field of lab/options.py: `takes` makes a flag of each.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import Field, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from ttrace.lab.options import ComparisonOptions, Flag, RunOptions
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
Reference = Annotated[str, typer.Option(help="Shell command of the trusted run.")]
Candidate = Annotated[str, typer.Option(help="Shell command of the run to test.")]
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
MaxBytes = Annotated[
    int | None,
    typer.Option(
        metavar="SIZE",
        parser=as_size,
        help="What the trace of all ranks may take on disk, such as 20GB.",
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
IsolateFailures = Annotated[
    bool,
    typer.Option(
        help="After a failure, and where modules quantise, isolate every module (3 more runs)."
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


def takes(
    kind: type, *, without: Collection[str] = ()
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command a flag for each field of `kind`, in the place of its `**chosen`.

    The command gets them by the names of the fields. Flags of a field that is made of fields itself
    come to it as one value: `--stop` is in `chosen["elsewhere"]`.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        flags = [*_flags(kind, without)]

        @functools.wraps(command)
        def called(**given: Any) -> None:
            chosen = _gathered(kind, given, without)
            command(**{**given, **chosen})

        parameters: list[inspect.Parameter] = []
        for own in inspect.signature(command, eval_str=True).parameters.values():
            if own.kind is inspect.Parameter.VAR_KEYWORD:
                parameters += flags
            else:
                parameters.append(own.replace(kind=inspect.Parameter.KEYWORD_ONLY))
        signature = inspect.Signature(parameters)
        called.__signature__ = signature  # type: ignore[attr-defined]
        called.__annotations__ = {each.name: each.annotation for each in parameters}
        return called

    return decorate


def _flags(kind: type, without: Collection[str]) -> Iterator[inspect.Parameter]:
    """What typer reads of the fields of options."""
    for each in fields(kind):
        if is_dataclass(type(each.default)):
            yield from _flags(type(each.default), without)
        elif each.name not in without and (flag := each.metadata.get("flag")) is not None:
            yield inspect.Parameter(
                _typed(each),
                inspect.Parameter.KEYWORD_ONLY,
                default=(each.default or None) if flag.takes else each.default,
                annotation=_annotation(each),
            )


def _typed(each: Field[Any]) -> str:
    """The name by which people give an option, as Python spells it."""
    flag: Flag = each.metadata["flag"]
    return flag.name.replace("-", "_") or each.name


def _annotation(each: Field[Any]) -> Any:
    flag: Flag = each.metadata["flag"]
    name, of = _typed(each).replace("_", "-"), flag.takes or type(each.default)
    words = f"--{name}/--no-{name}" if of == bool | None else f"--{name}"
    return Annotated[of, typer.Option(words, help=flag.help, min=flag.least, metavar=flag.metavar)]


def _of(kind: type, name: str) -> Any:
    """The annotation of one option, for a command that takes no others of its kind."""
    return next(_annotation(each) for each in fields(kind) if each.name == name)


def _gathered(kind: type, given: dict[str, Any], without: Collection[str]) -> dict[str, Any]:
    """Take the flags of these options out of what was given: as the fields that they are."""
    found: dict[str, Any] = {}
    for each in fields(kind):
        if is_dataclass(type(each.default)):
            part: Any = type(each.default)
            found[each.name] = part(**_gathered(part, given, without))
        elif each.name not in without and "flag" in each.metadata:
            value = given.pop(_typed(each))
            found[each.name] = each.default if value is None else value
    return found


Accept = _of(ComparisonOptions, "accept")
SplitReductions = _of(ComparisonOptions, "split_reductions")
Timeout = _of(RunOptions, "timeout_seconds")
