"""A trace in a terminal: what is in it, or one logical tensor of it.

$ ttrace show TRACE [TENSOR]
"""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from ttrace.core.logical import LogicalTensor
from ttrace.core.quantised import KeptView
from ttrace.core.statistics import Statistics
from ttrace.report.console import cell, few, put
from ttrace.report.numbers import counted


def print_trace(facts: dict[str, Any], console: Console) -> None:
    """What is in one trace."""
    seed = facts["noise_seed"]
    put(
        console,
        f"{facts['path']}: {counted(facts['tensors'], 'tensor')} of "
        f"{counted(facts['modules'], 'module')}",
        "bold",
    )
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
    for name, value in rows.items():
        put(console, f"  {name:<16} {value}", hanging=19)
    put(console, "")
    for id_ in facts["ids"]:
        put(console, id_)


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
    table = Table(box=None, pad_edge=False)
    for column in ("rank", "microbatch", "role", "layout", "local shape"):
        table.add_column(column, overflow="fold")
    rows = [*((p, "shard") for p in tensor.pieces), *((p, "replica") for p in tensor.replicas)]
    for piece, role in rows[:64]:
        role = "recomputed" if piece.recompute else role
        role = f"term of a sum ({len(piece.records)})" if len(piece.records) > 1 else role
        for record in piece.records:
            held = (record.rank, record.microbatch, role, piece.layout, list(record.shape))
            table.add_row(*(cell(str(each)) for each in held))
    console.print(table)
    if len(rows) > 64:
        put(console, f"and {counted(len(rows) - 64, 'more piece')}")
    for gap in tensor.gaps:
        put(console, f"no rank holds {gap}", style="red")


def _of_kept(kept: KeptView) -> dict[str, str]:
    low, high = f"{kept.lowest_scale:.6g}", f"{kept.highest_scale:.6g}"
    block = "x".join(map(str, kept.block)) or "1"
    return {
        "codes": f"{kept.codes}: {kept.zeros:,} zero, {kept.largest:,} the largest",
        "scales": f"{kept.scales} of {block}: " + (low if low == high else f"{low} to {high}"),
    }
