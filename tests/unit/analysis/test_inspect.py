"""Looking into one trace: what it holds, one tensor put together, one tensor exported."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.support.made_traces import write_rank
from ttrace.analysis.inspect import describe, export, view
from ttrace.core.layout import Layout
from ttrace.errors import CannotCompare, UsageError

WEIGHT = torch.arange(24.0).reshape(4, 6)
NAME = "step0/a:param.weight"


@pytest.fixture
def halves(tmp_path: Path) -> Path:
    """Two ranks that hold half of the rows each, and both a whole bias."""
    for rank, rows in enumerate(WEIGHT.chunk(2)):
        tensors = {
            "a:param.weight": (rows, Layout.full((4, 6)).shard(0, rank, 2)),
            "a:param.bias": torch.ones(3),
        }
        write_rank(tmp_path / "trace", rank, 2, tensors)
    return tmp_path / "trace"


@pytest.fixture
def first_half(tmp_path: Path) -> Path:
    layout = Layout.full((4, 6)).shard(0, 0, 2)
    return write_rank(tmp_path / "half", 0, 2, {"a:param.weight": (WEIGHT[:2], layout)})


def test_a_tensor_is_put_together_with_the_statistics_of_its_values(halves: Path) -> None:
    found = view(halves, NAME)
    assert found.tensor.shape == (4, 6)
    assert [piece.ranks for piece in found.tensor.pieces] == [(0,), (1,)]
    assert found.statistics is not None
    assert found.statistics.reference_norm == pytest.approx(float(WEIGHT.norm()))
    data = found.to_json()
    assert (data["id"], data["shape"], data["gaps"]) == (NAME, [4, 6], [])
    assert {piece["role"] for piece in data["pieces"]} == {"shard"}


def test_replicas_are_told_from_shards(halves: Path) -> None:
    pieces = view(halves, "step0/a:param.bias").to_json()["pieces"]
    assert [(piece["ranks"], piece["role"]) for piece in pieces] == [
        ([0], "shard"),
        ([1], "replica"),
    ]


def test_a_tensor_with_a_gap_has_no_statistics(first_half: Path) -> None:
    found = view(first_half, NAME)
    assert found.statistics is None
    assert found.to_json()["gaps"] == ["[2:4, 0:6]"]
    assert found.to_json()["norm"] is None


def test_an_unknown_tensor_is_answered_with_those_of_its_module(halves: Path) -> None:
    with pytest.raises(UsageError, match=r"of this module it has step0/a:param.weight"):
        view(halves, "step0/a:output.0")
    with pytest.raises(UsageError, match=r"`ttrace show` lists its ids"):
        view(halves, "step0/b:output.0")


def test_an_exported_tensor_is_whole_under_its_id(halves: Path, tmp_path: Path) -> None:
    told = export(halves, NAME, tmp_path / "weight.safetensors")
    assert (told["shape"], told["dtype"]) == ([4, 6], "float32")
    assert torch.equal(load_file(tmp_path / "weight.safetensors")[NAME], WEIGHT)


def test_nothing_is_overwritten_by_an_export(halves: Path, tmp_path: Path) -> None:
    file = tmp_path / "mine"
    file.write_text("precious")
    with pytest.raises(UsageError, match="choose another name"):
        export(halves, NAME, file)
    assert file.read_text() == "precious"


def test_what_is_not_complete_is_not_exported(first_half: Path, tmp_path: Path) -> None:
    with pytest.raises(CannotCompare, match=r"no rank holds \[2:4, 0:6\]"):
        export(first_half, NAME, tmp_path / "weight.safetensors")
    assert not (tmp_path / "weight.safetensors").exists()


def test_a_trace_is_described_with_what_is_missing(halves: Path, first_half: Path) -> None:
    whole, half = describe(halves), describe(first_half)
    assert (whole["world_size"], whole["missing_ranks"], half["missing_ranks"]) == (2, [], [1])
    assert whole["kinds"] == {"param": 2}
    assert whole["tensors"] == len(whole["ids"]) == 2
    assert half["size_bytes"] == 2 * 6 * 4
