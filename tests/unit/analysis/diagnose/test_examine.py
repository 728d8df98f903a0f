"""A closer look at a suspect: a wrong shard is named, drawn as a block, and its rows are found."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.support.made_results import FORWARD, detail, tensor
from ttrace.analysis.diagnose.examine import Examiner
from ttrace.capture.manifest import checked_out
from ttrace.core.evidence import Detail
from ttrace.core.ids import TensorId
from ttrace.core.layout import Layout
from ttrace.core.logical import LogicalTensor, Piece, assemble
from ttrace.core.plain import from_dict, to_dict
from ttrace.core.record import RankInfo, Record, Summary
from ttrace.trace.dtypes import dtype_name
from ttrace.trace.reader import Trace
from ttrace.trace.spans import SpanReader
from ttrace.trace.writer import TraceWriter

ID = TensorId.parse("step0/a:param.weight")
SHAPE = (8, 128)


def write(folder: Path, parts: dict[int, tuple[Layout, torch.Tensor]]) -> LogicalTensor:
    for rank, (layout, values) in parts.items():
        writer = TraceWriter(folder, RankInfo(rank=rank, world_size=len(parts)))
        record = Record(
            id=ID,
            rank=rank,
            sequence=0,
            dtype=dtype_name(values.dtype),
            shape=tuple(values.shape),
            layout=layout,
        )
        writer.write(record, values)
        writer.close(Summary(steps=1, hooks_expected=0, hooks_fired=0))
    records = Trace.open(folder).by_id()[ID]
    pieces = [Piece(layout=r.layout or Layout.full(SHAPE), records=(r,)) for r in records]
    return assemble(SHAPE, pieces)


def examine(folder: Path, whole: torch.Tensor, parts: dict[int, torch.Tensor], dim: int) -> Detail:
    full = Layout.full(SHAPE)
    reference = write(folder / "reference", {0: (full, whole)})
    layouts = {rank: full.shard(dim, rank % 2, 2) for rank in parts}
    candidate = write(folder / "candidate", {r: (layouts[r], t) for r, t in parts.items()})
    with SpanReader(folder / "reference") as ours, SpanReader(folder / "candidate") as theirs:
        return Examiner(ours, theirs).examine(tensor(ID, 0, 10.0), reference, candidate)


@pytest.fixture
def whole() -> torch.Tensor:
    return torch.randn(SHAPE, generator=torch.Generator().manual_seed(0))


def test_wrong_shard_is_named_and_is_a_block(tmp_path: Path, whole: torch.Tensor) -> None:
    left, right = (part.contiguous() for part in whole.chunk(2, 1))
    wrong = right.clone()
    wrong[3] += 1
    found = examine(tmp_path, whole, {0: left, 1: wrong}, 1)
    assert found.wrong_ranks == (1,)
    assert found.shards[0].ratio == 0
    assert len(found.tiles) == 8
    assert len(found.tiles[0]) == 64
    hit = [(r, c) for r, line in enumerate(found.tiles) for c, value in enumerate(line) if value]
    assert hit == [(3, c) for c in range(32, 64)]
    assert [row.index for row in found.worst_rows] == [(3,)]
    assert found.worst_rows[0].error_norm == pytest.approx(8.0)
    assert found.worst_rows[0].ranks == (0, 1)
    assert sum(found.ulp) == whole.numel()
    assert found.ulp[0] == whole.numel() - 64


def test_right_shards_have_nothing_to_show(tmp_path: Path, whole: torch.Tensor) -> None:
    parts = [part.contiguous() for part in whole.chunk(2, 0)]
    found = examine(tmp_path, whole, dict(enumerate(parts)), 0)
    assert found.wrong_ranks == ()
    assert found.worst_rows == ()
    assert found.ulp == (whole.numel(),)
    assert not any(value for line in found.tiles for value in line)


def test_replica_that_disagrees_is_marked(tmp_path: Path, whole: torch.Tensor) -> None:
    top, bottom = (part.contiguous() for part in whole.chunk(2, 0))
    found = examine(tmp_path, whole, {0: top, 1: bottom, 2: top, 3: bottom + 1}, 0)
    assert found.wrong_ranks == (3,)
    assert [(s.ranks, s.role, s.agrees) for s in found.shards] == [
        ((0,), "shard", True),
        ((1,), "shard", True),
        ((2,), "replica", True),
        ((3,), "replica", False),
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_ulp_counts_steps_between_neighbours(tmp_path: Path, dtype: torch.dtype) -> None:
    whole = torch.zeros(SHAPE, dtype=dtype)
    moved = whole.clone()
    moved[0, 0] = torch.nextafter(moved[0, 0], torch.tensor(1, dtype=dtype))
    moved[0, 1] = -moved[0, 0]
    left, right = (part.contiguous() for part in moved.chunk(2, 1))
    found = examine(tmp_path, whole, {0: left, 1: right}, 1)
    assert found.ulp == (whole.numel() - 2, 2)


def test_detail_reads_back() -> None:
    made = detail(TensorId(step=0, module=FORWARD[0], kind=ID.kind, slot="weight"))
    assert from_dict(Detail, to_dict(made)) == made


@pytest.mark.parametrize("packed", [False, True])
def test_commit_is_read_from_git_files(tmp_path: Path, packed: bool) -> None:
    git = tmp_path / ".git"
    (git / "refs/heads").mkdir(parents=True)
    (git / "HEAD").write_text("ref: refs/heads/main\n")
    commit = "0123456789abcdef" * 2 + "01234567"
    if packed:
        (git / "packed-refs").write_text(f"# pack-refs\n{commit} refs/heads/main\n")
    else:
        (git / "refs/heads/main").write_text(f"{commit}\n")
    (tmp_path / "deep").mkdir()
    assert checked_out(tmp_path / "deep") == commit


def test_broken_repository_has_no_commit(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    assert checked_out(tmp_path) is None
