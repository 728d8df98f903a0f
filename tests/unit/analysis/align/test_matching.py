"""Inputs whose rows are found again: padded to less, parts of one DTensor, one state at a time."""

from pathlib import Path
from typing import Any

import torch

from tests.support.made_traces import write_rank
from ttrace.analysis.align import Aligned, Aligner
from ttrace.analysis.batch import Strand, notes_of
from ttrace.analysis.sources import opened
from ttrace.core.ids import TensorId
from ttrace.core.layout import Layout, Run

PADDED = torch.tensor([[5, 6, 7, 8], [9, 1, 2, 0], [3, 4, 0, 0], [5, 1, 0, 0]])


def _aligned(folder: Path, whole: dict[str, Any], *ranks: dict[str, Any]) -> Aligned:
    write_rank(folder / "reference", 0, 1, whole)
    for rank, tensors in enumerate(ranks):
        write_rank(folder / "candidate", rank, len(ranks), tensors)
    sides = ("reference", folder / "reference"), ("candidate", folder / "candidate")
    with opened(*sides) as (reference, candidate):
        return Aligner(reference).align(candidate)


def test_padding_that_a_rank_leaves_out_is_not_missing(tmp_path: Path) -> None:
    aligned = _aligned(
        tmp_path,
        {":input.0": PADDED, "scores:output.0": torch.zeros(4, 2, 4, 4)},
        {":input.0": PADDED[:2], "scores:output.0": torch.zeros(2, 2, 4, 4)},
        {":input.0": PADDED[2:, :2], "scores:output.0": torch.zeros(2, 2, 2, 2)},
    )
    id_ = TensorId.parse("step0/scores:output.0")
    runs = aligned.positions[id_, 1, 0, None].layout.runs
    assert runs == ((Run(2, 2),), (Run(0, 2),), (Run(0, 2),), (Run(0, 2),))
    _, candidate = aligned.pairs()[id_]
    assert [str(layout) for layout in candidate.absent] == [
        "[2:4, 0:2, 2:4, 0:4]",
        "[2:4, 0:2, 0:4, 2:4]",
    ]


def test_a_rank_that_leaves_out_more_than_padding_is_not_recognised(tmp_path: Path) -> None:
    aligned = _aligned(
        tmp_path,
        {":input.0": PADDED, "f:output.0": torch.zeros(4, 4)},
        {":input.0": PADDED[:2, :3], "f:output.0": torch.zeros(2, 3)},
        {":input.0": PADDED[2:, :3], "f:output.0": torch.zeros(2, 3)},
    )
    assert notes_of(aligned.candidate_batches)
    assert all(a.uncertain and a.candidate_problem for a in aligned.tensors)


def test_parts_of_one_dtensor_are_the_same_batch_for_all_ranks(tmp_path: Path) -> None:
    full = Layout.full((4, 4))
    aligned = _aligned(
        tmp_path,
        {":input.0": PADDED, ":loss": torch.tensor(1.0)},
        {":input.0": (PADDED[:, :3], full.take(1, [Run(0, 3)])), ":loss": torch.tensor(1.0)},
        {":input.0": (PADDED[:, 3:], full.take(1, [Run(3, 1)])), ":loss": torch.tensor(1.0)},
    )
    _, loss = aligned.pairs()[TensorId.parse("step0/:loss")]
    assert [piece.ranks for piece in (*loss.pieces, *loss.replicas)] == [(0,), (1,)]


def test_a_state_without_a_batch_is_one_sample(tmp_path: Path) -> None:
    state = {":input.0": torch.arange(4.0), "f:output.0": torch.zeros(6)}
    aligned = _aligned(tmp_path, state, state, state)
    assert aligned.candidate_batches[Strand()].sizes == {0: 1}
    assert len(aligned.pairs()) == 2
