"""Commands that make something of traces, but no result: plan, show, export."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from ttrace.cli.options import Json
from ttrace.cli.screen import open_console, say, write_json
from ttrace.core.logical import LogicalTensor
from ttrace.core.quantised import KeptView
from ttrace.core.statistics import Statistics
from ttrace.lab.launch import prepare_folder
from ttrace.report.numbers import counted
from ttrace.report.terminal import cell, few, put
from ttrace.trace.store import local_path, place_of

_MOST_PIECES = 64  # chosen: more is read in the JSON


def plan(
    reference: Annotated[
        str, typer.Argument(help="Trace of the reference by `ttrace run --tap`, or its URL.")
    ],
    run: Annotated[
        str, typer.Argument(help="Plain trace of the run that is to be isolated, or its URL.")
    ],
    out: Annotated[
        Path, typer.Option(parser=local_path, metavar="PATH", help="Folder for the plans.")
    ],
    json_file: Json = None,
) -> None:
    """Write the plans by which `ttrace run --plan` isolates a run."""
    from ttrace.analysis.isolate import write_plans

    write_plans(place_of(reference), place_of(run), prepare_folder(out))
    files = len(list(out.glob("plan-*.json")))
    say(f"plans of {counted(files, 'rank')} in {out}", stderr=json_file == "-")
    write_json(json_file, {"plans": str(out), "ranks": files})


def show(
    trace: Annotated[str, typer.Argument(help="Folder of a trace, or its URL.")],
    tensor: Annotated[str | None, typer.Argument(help="Id of one tensor.")] = None,
    json_file: Json = None,
) -> None:
    """What is in a trace; with an id, one tensor's statistics and its map of shards."""
    from ttrace.analysis import inspect as inspection

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


def print_trace(facts: dict[str, Any], console: Console) -> None:
    """What is in one trace."""
    size = f"{counted(facts['tensors'], 'tensor')} of {counted(facts['modules'], 'module')}"
    put(console, f"{facts['path']}: {size}", "bold")
    for name, value in _rows_of(facts).items():
        put(console, f"  {name:<16} {value}", hanging=19)
    put(console, "")
    for id_ in facts["ids"]:
        put(console, id_)


def _rows_of(facts: dict[str, Any]) -> dict[str, str]:
    """What there always is to say, and of what is missing or wrong what there is."""
    seed = facts["noise_seed"]
    rows = {
        "size": f"{facts['size_bytes'] / 1e6:.1f} MB",
        "ranks": f"{facts['world_size'] - len(facts['missing_ranks'])} of {facts['world_size']}",
        "mesh": ", ".join(f"{axis} {size}" for axis, size in facts["axes"].items()) or "none",
        "steps": ", ".join(f"step{number}" for number in facts["steps"]) or "none",
        "adapter": f"{facts['adapter']} on {facts['device']}",
        "versions": ", ".join(f"{name} {version}" for name, version in facts["versions"].items()),
        "settings": ", ".join(f"{name} {value}" for name, value in facts["facts"].items()),
        "noise": "none" if seed is None else f"seed {seed}: a perturbed reference",
        "kinds": ", ".join(f"{count} {kind}" for kind, count in facts["kinds"].items()),
        "gradients": f"{facts['hooks_fired']} of {facts['hooks_expected']} hooks fired",
    }
    for key in ("missing_ranks", "unfinished_ranks", "unfired", "never_called", "faults", "notes"):
        if facts[key]:
            rows[key.replace("_", " ")] = few(tuple(map(str, facts[key])))
    return rows


def print_tensor(
    name: str,
    tensor: LogicalTensor,
    statistics: Statistics | None,
    console: Console,
    kept: KeptView | None = None,
) -> None:
    """One logical tensor: its statistics, its codes and scales, and the map of its shards."""
    put(console, name, style="bold")
    facts = {"shape": str(list(tensor.shape)), "dtype": tensor.dtype}
    if statistics is not None:
        facts |= {
            "norm": f"{statistics.reference_norm:.6g}",
            "nonfinite": str(statistics.nonfinite_reference),
        }
    if kept is not None:
        facts |= _of_kept(kept)
    if tensor.notes:
        facts["layout"] = ", ".join(tensor.notes)
    for key, value in facts.items():
        put(console, f"  {key:<12} {value}")
    console.print(_map_of_shards(tensor))
    if (more := len(tensor.pieces) + len(tensor.replicas) - _MOST_PIECES) > 0:
        put(console, f"and {counted(more, 'more piece')}")
    for gap in tensor.gaps:
        put(console, f"no rank holds {gap}", style="red")


def _map_of_shards(tensor: LogicalTensor) -> Table:
    """Who holds which part; a row for each record."""
    table = Table(box=None, pad_edge=False)
    for column in ("rank", "microbatch", "role", "layout", "local shape"):
        table.add_column(column, overflow="fold")
    pieces = [*((p, "shard") for p in tensor.pieces), *((p, "replica") for p in tensor.replicas)]
    for piece, role in pieces[:_MOST_PIECES]:
        role = "recomputed" if piece.recompute else role
        role = f"term of a sum ({len(piece.records)})" if len(piece.records) > 1 else role
        for record in piece.records:
            held = (record.rank, record.microbatch, role, piece.layout, list(record.shape))
            table.add_row(*(cell(str(each)) for each in held))
    return table


def _of_kept(kept: KeptView) -> dict[str, str]:
    low, high = f"{kept.lowest_scale:.6g}", f"{kept.highest_scale:.6g}"
    block = "x".join(map(str, kept.block)) or "1"
    return {
        "codes": f"{kept.codes}: {kept.zeros:,} zero, {kept.largest:,} the largest",
        "scales": f"{kept.scales} of {block}: " + (low if low == high else f"{low} to {high}"),
    }
