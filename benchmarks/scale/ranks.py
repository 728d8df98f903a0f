"""Thousands of ranks: traces of a step that nobody ran, opened, aligned and checked.

A reference on one rank, a perturbed one, and a candidate of tensor, pipeline and data parallelism,
by fingerprints; the tensors of one block are recorded whole. One shard of that block, and then one
of another, is wrong on one rank, which must be named. Checks run in one process, of one thread.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from zoo.made_up.checks import checked
from zoo.made_up.traces import (
    StoredAs,
    Wrong,
    write_candidate,
    write_reference,
    write_spoilt,
)
from zoo.made_up.values import Mesh

LAYERS = 64
MESHES = tuple(Mesh(tp=tp, dp=dp, pp=16) for tp, dp in ((2, 2), (8, 4), (8, 32)))
_WHOLE, _OTHER = "layers.32", "layers.48"  # blocks
_STORED = StoredAs(sums=4096, whole=_WHOLE)  # of a reference: a cell lies on one rank
_SHARDS = StoredAs(whole=_WHOLE)
_COLUMNS = (
    *("tp", "pp", "dp", "ranks", "records", "MB", "check, s", "of CPU", "peak, MB", "us a record"),
    *("one wrong, whole", "one wrong, by fingerprints"),
)


def ranks() -> str:
    """The table: a row for every mesh."""
    lines = ["| " + " | ".join(_COLUMNS) + " |", "|" + "---|" * len(_COLUMNS)]
    for mesh in MESHES:
        lines.append(_row(mesh))
        print(lines[-1], flush=True)
    return "\n".join(lines)


def _row(mesh: Mesh) -> str:
    with tempfile.TemporaryDirectory(prefix="ranks-") as name:
        folder = Path(name)
        for run, seed in (("reference", None), ("perturbed", 1)):
            write_reference(folder / run, LAYERS, mesh.dp, noise_seed=seed, stored=_STORED)
        count = write_candidate(folder / "candidate", LAYERS, mesh, stored=_SHARDS)
        size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        clean = checked(folder, "candidate")
        if clean.code:
            raise SystemExit(f"{mesh}: a run that is right was not found to be: {clean.named}")
        found = [_spoilt(folder, mesh, block) for block in (_WHOLE, _OTHER)]
    return (
        f"| {mesh.tp} | {mesh.pp} | {mesh.dp} | {mesh.ranks:,} | {count:,} | {size / 1e6:,.0f} "
        f"| {clean.seconds:.0f} | {clean.cpu_seconds:.0f} | {clean.peak_mb:,.0f} "
        f"| {clean.cpu_seconds / count * 1e6:.0f} | {found[0]} | {found[1]} |"
    )


def _spoilt(folder: Path, mesh: Mesh, block: str) -> str:
    """A wrong shard of a block on one rank; how it is named, which must be right."""
    stage = int(block.rpartition(".")[2]) * mesh.pp // LAYERS
    rank = stage * mesh.stage_ranks + mesh.stage_ranks // 3
    wrong = Wrong(module=f"{block}.feed_forward.w2", rank=rank)
    name = f"wrong-{block}"
    write_spoilt(folder / name, folder / "candidate", LAYERS, mesh, wrong, _SHARDS)
    found = checked(folder, name)
    if (found.named, found.ranks) != (wrong.module, (rank,)):
        raise SystemExit(f"{mesh}: {wrong} was planted, found {found.named} on {found.ranks}")
    return f"rank {rank} of `{wrong.module}`, {found.seconds:.0f} s"
