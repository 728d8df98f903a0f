"""A closer look at a suspect: a wrong shard is named, drawn as a block, and its rows are found."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.support.logical import ID, write_logical
from tests.support.made_results import FORWARD, detail, made, tensor
from ttrace.analysis.diagnose import sample
from ttrace.analysis.diagnose.examine import SUSPECTS, Examiner, suspects, with_ranks
from ttrace.capture.manifest import checked_out
from ttrace.core.door import from_dict, to_dict
from ttrace.core.evidence import Detail
from ttrace.core.ids import TensorId
from ttrace.core.layout import Layout
from ttrace.core.results import TensorResult, Verdict
from ttrace.measure.accumulator import Accumulator
from ttrace.trace.spans import SpanReader

SHAPE = (8, 128)


def examine(
    folder: Path,
    whole: torch.Tensor,
    parts: dict[int, torch.Tensor],
    dim: int,
    result: TensorResult | None = None,
) -> Detail:
    full = Layout.full(whole.shape)
    count = len({rank % 2 for rank in parts})
    reference = write_logical(folder / "reference", {0: (full, whole)})
    layouts = {rank: full.shard(dim, rank % 2, count) for rank in parts}
    held = {rank: (layouts[rank], values) for rank, values in parts.items()}
    candidate = write_logical(folder / "candidate", held)
    with SpanReader(folder / "reference") as left, SpanReader(folder / "candidate") as right:
        suspect = tensor(ID, 0, 10.0) if result is None else result
        return Examiner(left, right).examine(suspect, reference, candidate)


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


def test_worst_elements_are_shown_with_their_values(tmp_path: Path, whole: torch.Tensor) -> None:
    left, right = (part.contiguous() for part in whole.chunk(2, 1))
    wrong = right.clone()
    wrong[3, 5] += 2
    wrong[6, 1] = torch.inf
    found = examine(tmp_path, whole, {0: left, 1: wrong}, 1).elements
    assert [element.index for element in found] == [(6, 65), (3, 69)]
    assert found[1].reference == whole[3, 69]
    assert found[1].candidate == pytest.approx(float(whole[3, 69]) + 2)
    assert found[0].candidate == torch.inf
    assert {element.ranks for element in found} == {(1,)}


def test_number_is_shown_by_rank(tmp_path: Path) -> None:
    """A norm that every rank holds; one element of a tensor of rank 0 has no index."""
    full = Layout.full(())
    reference = write_logical(tmp_path / "reference", {0: (full, torch.tensor(4.0))})
    values = {rank: (full, torch.tensor(2.0 + rank / 100)) for rank in range(4)}
    candidate = write_logical(tmp_path / "candidate", values)
    with SpanReader(tmp_path / "reference") as left, SpanReader(tmp_path / "candidate") as right:
        found = Examiner(left, right).examine(tensor(ID, 0, 10.0), reference, candidate)
    held = {scalar.ranks: scalar.value for scalar in found.scalars}
    assert held == {(rank,): pytest.approx(2.0 + rank / 100) for rank in range(4)}
    assert found.elements[0].index == ()
    assert found.elements[0].reference == 4.0


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


def test_clean_run_has_no_suspects() -> None:
    clean = made(4)
    assert suspects(clean.tensors, clean.culprits) == []


def test_failures_are_suspects_and_there_are_few() -> None:
    failing = made(12, wrong_layer=11)
    found = suspects(failing.tensors, failing.culprits)
    assert len(failing.failures) > len(found) == SUSPECTS
    assert {result.id for result in found} <= {result.id for result in failing.failures}
    assert found[0].id == failing.culprits[0].evidence[0]


def test_what_is_undecided_is_looked_at() -> None:
    first, *others = made(2).tensors
    unsure = replace(first, verdict=Verdict.UNDECIDED)
    assert suspects([unsure, *others], []) == [unsure]


LARGE = (512, 256)


@pytest.fixture
def small_samples(monkeypatch: pytest.MonkeyPatch) -> int:
    """As if a tensor with more than so many elements were large."""
    most = 1 << 14
    monkeypatch.setattr(sample.sample, "__defaults__", (most,))
    return most


def suspect_of(whole: torch.Tensor, wrong: torch.Tensor) -> TensorResult:
    """A failing result with what a comparison measures."""
    measured = Accumulator(shape=whole.shape)
    measured.update(whole, wrong)
    return replace(tensor(ID, 0, 10.0), shape=LARGE, statistics=measured.result())


@pytest.mark.parametrize("dim", [0, 1])
def test_sample_of_a_large_suspect_names_the_wrong_rank(
    tmp_path: Path, small_samples: int, dim: int
) -> None:
    whole = torch.randn(LARGE, generator=torch.Generator().manual_seed(0))
    first, second = whole.chunk(2, dim)
    parts = [first.contiguous(), second * 1.5]
    result = suspect_of(whole, torch.cat(parts, dim))
    found = examine(tmp_path / "sample", whole, dict(enumerate(parts)), dim, result)
    assert found.examined is not None
    assert small_samples <= found.examined < 2 * small_samples < whole.numel()
    assert sum(found.ulp) == found.examined
    assert found.wrong_ranks == (1,)
    assert found.shards[0].ratio == 0
    assert (len(found.tiles), len(found.tiles[0])) == (32, 64)
    is_wrong = torch.zeros(32, 64, dtype=torch.bool)
    is_wrong.chunk(2, dim)[1].fill_(True)
    assert torch.equal(torch.tensor(found.tiles) > 0, is_wrong)


def test_sample_estimates_what_the_whole_measures(
    tmp_path: Path, small_samples: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = torch.randn(LARGE, generator=torch.Generator().manual_seed(0))
    wrong = whole + 0.1 * torch.randn(LARGE, generator=torch.Generator().manual_seed(1))
    parts = dict(enumerate(part.contiguous() for part in wrong.chunk(2, 1)))
    result = suspect_of(whole, wrong)
    sampled = examine(tmp_path / "sample", whole, parts, 1, result)
    monkeypatch.setattr(sample.sample, "__defaults__", (whole.numel(),))
    exact = examine(tmp_path / "whole", whole, parts, 1, result)
    assert exact.examined is None
    assert sampled.reference_rms == pytest.approx(exact.reference_rms, rel=0.05)
    for part, known in zip(sampled.shards, exact.shards, strict=True):
        assert part.ratio == pytest.approx(known.ratio, rel=0.05)
        assert part.relative_error == pytest.approx(known.relative_error, rel=0.05)


def test_one_wrong_row_of_a_large_suspect_is_found_and_not_taken_for_common(
    tmp_path: Path, small_samples: int
) -> None:
    whole = torch.randn(LARGE, generator=torch.Generator().manual_seed(0))
    wrong = whole.clone()
    wrong[301] += 1
    parts = dict(enumerate(part.contiguous() for part in wrong.chunk(2, 1)))
    found = examine(tmp_path, whole, parts, 1, suspect_of(whole, wrong))
    assert [row.index for row in found.worst_rows] == [(301,)]
    assert found.worst_rows[0].error_norm == pytest.approx(16.0)
    allowed = tensor(ID, 0, 10.0).tolerance
    assert allowed is not None
    exact = math.sqrt(128) / (allowed.error_norm * math.sqrt(0.5))
    assert [part.ratio for part in found.shards] == [pytest.approx(exact)] * 2


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


def test_replicas_that_disagree_and_are_all_wrong_are_wrong_everywhere(
    tmp_path: Path, whole: torch.Tensor
) -> None:
    """Where one of both is right, the other is named."""
    result = replace(tensor(ID, 0, 10.0, Verdict.CONFLICT), ranks=(1,))
    full = Layout.full(SHAPE)

    def ranks_of(folder: Path, *held: torch.Tensor) -> tuple[int, ...]:
        reference = write_logical(folder / "reference", {0: (full, whole)})
        candidate = write_logical(
            folder / "candidate", {rank: (full, values) for rank, values in enumerate(held)}
        )
        with SpanReader(folder / "reference") as left, SpanReader(folder / "candidate") as right:
            detail = Examiner(left, right).examine(result, reference, candidate)
        return with_ranks([result], [detail], {})[0].ranks

    assert ranks_of(tmp_path / "both", whole / 2, whole / 3) == ()
    assert ranks_of(tmp_path / "one", whole, whole / 2) == (1,)
