"""Commands that make something of traces, but no result: show, export, plan."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ttrace.cli.options import Json
from ttrace.cli.screen import open_console, say, write_json
from ttrace.report.numbers import counted


def show(
    trace: Annotated[Path, typer.Argument(help="Folder of a trace.")],
    tensor: Annotated[str | None, typer.Argument(help="Id of one tensor.")] = None,
    json_file: Json = None,
) -> None:
    """What is in a trace; with an id, one tensor's statistics and its map of shards."""
    from ttrace.analysis import inspect as inspection
    from ttrace.report.trace_view import print_tensor, print_trace

    console = open_console(stderr=json_file == "-")
    if tensor is None:
        facts = inspection.describe(trace)
        print_trace(facts, console)
        write_json(json_file, facts)
    else:
        view = inspection.view(trace, tensor)
        print_tensor(tensor, view.tensor, view.statistics, console)
        write_json(json_file, view.to_json())


def export(
    trace: Annotated[Path, typer.Argument(help="Folder of a trace.")],
    tensor: Annotated[str, typer.Argument(help="Id of one tensor.")],
    file: Annotated[Path, typer.Argument(help="The .safetensors file to write.")],
    json_file: Json = None,
) -> None:
    """Write one logical tensor, put together from all ranks, as a safetensors file."""
    from ttrace.analysis import inspect as inspection

    facts = inspection.export(trace, tensor, file)
    say(f"{tensor} {facts['shape']} {facts['dtype']} -> {file}", stderr=json_file == "-")
    write_json(json_file, facts)


def plan(
    reference: Annotated[Path, typer.Argument(help="Trace of `ttrace run --tap`.")],
    run: Annotated[Path, typer.Argument(help="Plain trace of the run to isolate.")],
    out: Annotated[Path, typer.Option(help="Folder for the plans.")],
    json_file: Json = None,
) -> None:
    """Write the plans by which `ttrace run --plan` isolates a run, one for every rank."""
    from ttrace.analysis.isolate import write_plans
    from ttrace.lab.launch import prepare_folder

    write_plans(reference, run, prepare_folder(out))
    files = len(list(out.glob("plan-*.json")))
    say(f"plans of {counted(files, 'rank')} in {out}", stderr=json_file == "-")
    write_json(json_file, {"plans": str(out), "ranks": files})
