"""A made-up step on eight ranks: fingerprints pass, and a wrong shard is found on its rank."""

from __future__ import annotations

from pathlib import Path

import pytest

from ttrace.analysis.align import Aligner
from ttrace.analysis.check import check
from ttrace.analysis.sources import opened
from ttrace.core.results import CheckResult, Outcome
from ttrace.trace.fingerprint import is_fingerprint
from ttrace.trace.reader import Trace
from ttrace.trace.sketches import cells_of
from zoo.made_up.traces import (
    Wrong,
    write_candidate,
    write_reference,
    write_spoilt,
)
from zoo.made_up.values import Mesh

LAYERS, MESH = 2, Mesh(tp=4, dp=2)


@pytest.fixture(scope="module")
def references(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ranks")
    write_reference(folder / "reference", LAYERS, MESH.dp, noise_seed=None)
    write_reference(folder / "perturbed", LAYERS, MESH.dp, noise_seed=1)
    return folder


def checked(references: Path, candidate: Path) -> CheckResult:
    return check(references / "reference", candidate, perturbed=[references / "perturbed"])


def test_a_step_on_many_ranks_passes_by_its_fingerprints(references: Path, tmp_path: Path) -> None:
    count = write_candidate(tmp_path, LAYERS, MESH)
    records = [r for rank in Trace.open(tmp_path).ranks.values() for r in rank.records]
    assert len(records) == count
    assert sum(map(is_fingerprint, records)) > count / 2
    result = checked(references, tmp_path)
    assert result.outcome is Outcome.EQUIVALENT
    assert len(result.tensors) == count // MESH.ranks


def test_one_wrong_shard_on_one_rank_is_found_and_its_module_named(
    references: Path, tmp_path: Path
) -> None:
    module = "layers.1.feed_forward.w2"
    write_candidate(tmp_path, LAYERS, MESH, Wrong(module=module, rank=5))
    result = checked(references, tmp_path)
    assert [culprit.blame.modules for culprit in result.culprits] == [(module,)]
    assert {t.ranks for t in result.tensors if t.verdict.is_failure} == {(5,)}


def test_pipeline_stages_have_their_own_layers(references: Path, tmp_path: Path) -> None:
    mesh, module = Mesh(tp=2, dp=2, pp=2), "layers.1.feed_forward.w2"
    write_candidate(tmp_path / "right", LAYERS, mesh)
    assert checked(references, tmp_path / "right").outcome is Outcome.EQUIVALENT
    spoilt = Wrong(module=module, rank=6)
    write_spoilt(tmp_path / "wrong", tmp_path / "right", LAYERS, mesh, spoilt)
    result = checked(references, tmp_path / "wrong")
    assert [culprit.blame.modules for culprit in result.culprits] == [(module,)]
    assert {t.ranks for t in result.tensors if t.verdict.is_failure} == {(6,)}


def test_terms_of_sums_are_judged_by_what_is_known_of_sums(
    references: Path, tmp_path: Path
) -> None:
    """They have no exact squares; where perturbed runs were judged by theirs, clean ones failed."""
    write_candidate(tmp_path, LAYERS, MESH)
    with opened(("reference", references / "reference"), ("candidate", tmp_path)) as sources:
        pairs = Aligner(sources[0]).align(sources[1]).pairs()
        cells = {str(id_): found.is_exact for id_, found in cells_of(pairs).items()}
        assert not cells["step0/layers.0.attention.wq:grad.weight"]
        assert cells["step0/layers.0.attention.wq:main_grad.weight"]
