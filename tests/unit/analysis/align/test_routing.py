"""Rows that a module orders by expert: told by their values, or said to be unknown."""

from pathlib import Path

import torch

from tests.support.made_traces import write_rank
from ttrace.analysis.align import Aligned, Aligner
from ttrace.analysis.sources import opened
from ttrace.core.ids import TensorId
from ttrace.core.layout import Run

IDS = torch.tensor([[1], [2], [3], [4]])
TOKENS = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
MADE = torch.randn(8, 3, generator=torch.Generator().manual_seed(1))
CHOSEN = torch.tensor([[1, 0], [0, 1], [1, 0], [1, 0]])


def _tensors(samples: slice, order: list[int], *, rows: torch.Tensor) -> dict[str, torch.Tensor]:
    return {
        ":input.0": IDS[samples],
        "experts:input.0": TOKENS[samples],
        "experts:input.1": CHOSEN[samples],
        "experts.act:output.0": rows[order],
    }


def _aligned(folder: Path, rows: torch.Tensor) -> Aligned:
    whole = _tensors(slice(0, 4), [1, 2, 5, 7, 0, 3, 4, 6], rows=MADE)
    write_rank(folder / "reference", 0, 1, whole)
    write_rank(folder / "candidate", 0, 2, _tensors(slice(0, 2), [2, 1, 0, 3], rows=rows))
    write_rank(folder / "candidate", 1, 2, _tensors(slice(2, 4), [5, 7, 6, 4], rows=rows))
    sides = ("reference", folder / "reference"), ("candidate", folder / "candidate")
    with opened(*sides) as (reference, candidate):
        return Aligner(reference).align(candidate)


def test_rows_are_found_by_the_nearest_values(tmp_path: Path) -> None:
    aligned = _aligned(tmp_path, MADE * (1 + 1e-6))
    id_ = TensorId.parse("step0/experts.act:output.0")
    first = aligned.positions[id_, 0, 0, None].layout.runs[0]
    assert first == (Run(1, 1), Run(0, 1), Run(4, 2))
    assert all(alignment.pair is not None for alignment in aligned.tensors)


def test_rows_that_are_equal_take_each_others_places_in_order(tmp_path: Path) -> None:
    aligned = _aligned(tmp_path, torch.zeros_like(MADE))
    id_ = TensorId.parse("step0/experts.act:output.0")
    rows = [
        index
        for rank in range(2)
        for run in aligned.positions[id_, rank, 0, None].layout.runs[0]
        for index in run.indices
    ]
    assert sorted(rows) == list(range(8))


def test_rows_of_modules_in_a_list_are_found_where_ranks_have_other_shares(tmp_path: Path) -> None:
    tokens = torch.arange(4).view(4, 1)
    rows = torch.arange(10.0).view(5, 2)

    def tensors(samples: slice, own: list[int]) -> dict[str, torch.Tensor]:
        return {
            ":input.0": tokens[samples],
            "experts.0:input.0": rows[own],
            "experts.0:output.0": -rows[own],
            "experts.1:input.0": 100 + tokens[samples].float().expand(-1, 2),
        }

    write_rank(tmp_path / "reference", 0, 1, tensors(slice(0, 4), [0, 1, 2, 3, 4]))
    write_rank(tmp_path / "candidate", 0, 2, tensors(slice(0, 2), [3, 0, 1]))
    write_rank(tmp_path / "candidate", 1, 2, tensors(slice(2, 4), [4, 2]))
    sides = ("reference", tmp_path / "reference"), ("candidate", tmp_path / "candidate")
    with opened(*sides) as (reference, candidate):
        aligned = Aligner(reference).align(candidate)
    id_ = TensorId.parse("step0/experts.0:output.0")
    assert aligned.positions[id_, 0, 0, None].layout.runs[0] == (Run(3, 1), Run(0, 2))
    assert aligned.positions[id_, 1, 0, None].layout.runs[0] == (Run(4, 1), Run(2, 1))
    assert all(alignment.pair is not None for alignment in aligned.tensors)
