"""Commands that make something of traces, but no result: show, export."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ttrace.cli.options import Json
from ttrace.cli.screen import open_console, say, write_json
from ttrace.trace.store import local_path


def show(
    trace: Annotated[str, typer.Argument(help="Folder of a trace, or its URL.")],
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
        print_tensor(tensor, view.tensor, view.statistics, console, view.kept)
        write_json(json_file, view.to_json())


def export(
    trace: Annotated[str, typer.Argument(help="Folder of a trace, or its URL.")],
    tensor: Annotated[str, typer.Argument(help="Id of one tensor.")],
    file: Annotated[
        Path,
        typer.Argument(parser=local_path, metavar="FILE", help="The .safetensors file to write."),
    ],
    json_file: Json = None,
) -> None:
    """Write one logical tensor, put together from all ranks, as a safetensors file."""
    from ttrace.analysis import inspect as inspection

    facts = inspection.export(trace, tensor, file)
    beside = " with codes and scales" if facts["beside"] else ""
    say(f"{tensor} {facts['shape']} {facts['dtype']}{beside} -> {file}", stderr=json_file == "-")
    write_json(json_file, facts)
