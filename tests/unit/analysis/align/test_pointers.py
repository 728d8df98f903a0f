"""Inputs that number rows: edges, groups and bounds, of which every rank counts its own."""

from pathlib import Path

import pytest
import torch

from tests.support.made_traces import write_rank
from ttrace.analysis.align import Aligned, Aligner
from ttrace.analysis.sources import opened
from ttrace.core.ids import TensorId
from ttrace.core.layout import Run

Tensors = dict[str, torch.Tensor]

NODES = torch.arange(5 * 3, dtype=torch.float32).reshape(5, 3)
EDGES = torch.tensor([[0, 1, 2, 4], [1, 0, 3, 2]])  # the first two of nodes 0 and 1
GRAPHS = torch.tensor([0, 0, 1, 1, 1])
BOUNDS = torch.tensor([0, 2, 5])


def _aligned(folder: Path, first: Tensors, second: Tensors) -> Aligned:
    whole = {
        ":input.0": NODES,
        ":input.1": EDGES,
        ":input.2": GRAPHS,
        ":input.3": BOUNDS,
        "messages:output.0": torch.zeros(4, 7),
        "pooled:output.0": torch.zeros(2, 7),
    }
    write_rank(folder / "reference", 0, 1, whole)
    write_rank(folder / "candidate", 0, 2, first)
    write_rank(folder / "candidate", 1, 2, second)
    sides = ("reference", folder / "reference"), ("candidate", folder / "candidate")
    with opened(*sides) as (reference, candidate):
        return Aligner(reference).align(candidate)


def _of_rank(rank: int) -> Tensors:
    nodes = slice(0, 2) if rank == 0 else slice(2, 5)
    return {
        ":input.0": NODES[nodes],
        ":input.1": EDGES[:, :2] if rank == 0 else EDGES[:, 2:] - 2,
        ":input.2": GRAPHS[nodes] - rank,
        ":input.3": torch.tensor([0, 2 + rank]),
        "messages:output.0": torch.zeros(2, 7),
        "pooled:output.0": torch.zeros(1, 7),
    }


def _runs(aligned: Aligned, name: str, rank: int) -> tuple[Run, ...]:
    id_ = TensorId.parse(f"step0/{name}")
    return aligned.positions[id_, rank, 0, None].layout.runs[0]


def test_numbers_of_rows_name_the_same_rows(tmp_path: Path) -> None:
    aligned = _aligned(tmp_path, _of_rank(0), _of_rank(1))
    named = {str(a.id) for a in aligned.tensors if a.names_rows}
    assert named == {"step0/:input.1", "step0/:input.2", "step0/:input.3"}
    assert all(a.pair is not None for a in aligned.tensors if not a.names_rows)


def test_rows_of_edges_and_of_graphs_are_placed(tmp_path: Path) -> None:
    aligned = _aligned(tmp_path, _of_rank(0), _of_rank(1))
    assert _runs(aligned, "messages:output.0", 1) == (Run(2, 2),)
    assert _runs(aligned, "pooled:output.0", 1) == (Run(1, 1),)


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        (":input.1", torch.tensor([[0, 1], [1, 0]])),
        (":input.2", torch.tensor([0, 1, 1])),
        (":input.3", torch.tensor([0, 1, 3])),
    ],
)
def test_numbers_of_other_rows_are_compared_as_they_are(
    tmp_path: Path, name: str, wrong: torch.Tensor
) -> None:
    aligned = _aligned(tmp_path, _of_rank(0), _of_rank(1) | {name: wrong})
    found = next(a for a in aligned.tensors if str(a.id) == f"step0/{name}")
    assert not found.names_rows


def test_positions_are_no_groups(tmp_path: Path) -> None:
    """Ranks that count positions anew are wrong: every row has a number of its own."""
    whole = {":input.0": NODES, ":input.1": torch.arange(5)}
    write_rank(tmp_path / "reference", 0, 1, whole)
    for rank, rows in enumerate((slice(0, 2), slice(2, 5))):
        held = {":input.0": NODES[rows], ":input.1": torch.arange(rows.stop - rows.start)}
        write_rank(tmp_path / "candidate", rank, 2, held)
    sides = ("reference", tmp_path / "reference"), ("candidate", tmp_path / "candidate")
    with opened(*sides) as (reference, candidate):
        aligned = Aligner(reference).align(candidate)
    assert not any(a.names_rows for a in aligned.tensors)
