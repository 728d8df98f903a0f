"""The vocabulary is padded to another size in each run: what both have is compared."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.tracing import explain, places
from ttrace.analysis.check import check
from ttrace.core.ids import Kind
from zoo.megatron.training import isolate, trace, trace_reference
from zoo.workers import WorkerPool

SMALL: dict[str, Any] = {"layers": 2, "microbatches": 2}
REFERENCE = SMALL | {"bug": "twin:loud-tokens"}
WIDE = {"embedding.word_embeddings", "output_layer"}


@pytest.mark.parametrize(
    "layout",
    [{"tp": 2, "padded": 128}, {"padded": 96, "zero1": True, "untied": True}],
    ids=["tp2", "zero1-untied"],
)
def test_padding_beyond_the_shorter_vocabulary_is_left_out(
    layout: dict[str, Any], pool: WorkerPool, tmp_path: Path
) -> None:
    model = REFERENCE | ({"untied": True} if "untied" in layout else {})
    reference, noisy = trace_reference(pool, tmp_path, **model)
    candidate = trace(pool, tmp_path / "candidate", 2, **(model | layout))

    result = check(reference, candidate, perturbed=[noisy])

    assert result.exit_code == 0, explain(result)
    shapes = {r.id.kind: r.shape for r in result.tensors if r.id.module in WIDE}
    kinds = (Kind.PARAM, Kind.GRAD, Kind.MAIN_GRAD, Kind.CLIPPED_GRAD, Kind.PARAM_AFTER)
    assert {shapes[kind] for kind in kinds} == {(64, 32)}
    assert any(r.shape[-1] == 64 for r in result.tensors if r.id.module == "output_layer")
    assert any("the first 64 are compared" in note.text for note in result.notes)


@pytest.mark.parametrize("bug", ["loud-tokens", "twin:loud-tokens"])
def test_an_isolated_run_leaves_padding_as_it_is(
    bug: str, pool: WorkerPool, tmp_path: Path
) -> None:
    layout = SMALL | {"tp": 2, "padded": 128}
    candidate = trace(pool, tmp_path / "candidate", 2, bug, **layout)
    result = isolate(pool, tmp_path, candidate, 2, layout, reference=REFERENCE, bug=bug)
    expected = [("embedding.word_embeddings", "forward")] if bug == "loud-tokens" else []
    assert places(result) == expected, explain(result)
    assert result.exit_code == len(expected)
