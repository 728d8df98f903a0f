"""Ranks in words: by their places in the mesh, and by number for whoever reads logs.

tp1 (ranks 1, 3)                    exactly the ranks with that coordinate
dp0 tp1, dp1 tp0 (ranks 1, 2)       ranks that have nothing in common
rank 1                              without a mesh
"""

from __future__ import annotations

from collections.abc import Sequence

from ttrace.core.mesh import Mesh
from ttrace.core.results import CheckResult
from ttrace.report.words import LINES, Line

_MOST_RANKS = 16  # chosen: more are no place to look at
_MOST_NAMES = 4  # chosen: a list of more is read by number


def mesh_of(result: CheckResult) -> Mesh:
    """The candidate's."""
    found = next((run for run in result.runs if run.role == "candidate"), None)
    return Mesh(axes={}) if found is None else found.placed


def listed_ranks(ranks: Sequence[int], mesh: Mesh) -> str:
    """tp1 (ranks 1, 3); every rank; long lists are cut."""
    if len(ranks) > 1 and len(ranks) == len(mesh.coordinates) and mesh.naming:
        return LINES[Line.EVERY_RANK]
    shown = ", ".join(map(str, ranks[:_MOST_RANKS])) + " ..." * (len(ranks) > _MOST_RANKS)
    numbers = LINES[Line.RANKS].format(s="s" * (len(ranks) > 1), ranks=shown)
    names = _names(ranks, mesh)
    return f"{names} ({numbers})" if names else numbers


def on_ranks(ranks: Sequence[int], mesh: Mesh) -> str:
    return LINES[Line.ON_RANKS].format(ranks=listed_ranks(ranks, mesh))


def _names(ranks: Sequence[int], mesh: Mesh) -> str:
    """What the ranks have in common, or each by its name where they are few."""
    if common := mesh.common(ranks):
        return " ".join(common)
    names = [mesh.name(rank) for rank in ranks] if len(ranks) <= _MOST_NAMES else []
    return ", ".join(names) if all(names) else ""
