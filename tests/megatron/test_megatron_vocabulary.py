"""The vocabulary is padded to another size in each run: what both have is compared."""

from typing import Any

import pytest

from tests.support.tracing import explain
from ttrace.core.ids import Kind
from zoo.bug import Family
from zoo.megatron.training import alone, on_ranks
from zoo.registry import find
from zoo.trials import Trials, blames

SMALL: dict[str, Any] = {"layers": 2, "microbatches": 2}
MASKED = "zoo.megatron.special:mask_padding"
WIDE = {"embedding.word_embeddings", "output_layer"}


@pytest.mark.parametrize(
    "layout",
    [{"tp": 2, "padded": 128}, {"padded": 96, "zero1": True, "untied": True}],
    ids=["tp2", "zero1-untied"],
)
def test_padding_beyond_the_shorter_vocabulary_is_left_out(
    layout: dict[str, Any], trials: Trials
) -> None:
    whole = SMALL | layout

    result = trials.compare(alone(whole, MASKED), on_ranks(2, whole, MASKED))

    assert result.exit_code == 0, explain(result)
    shapes = {r.id.kind: r.shape for r in result.tensors if r.id.module in WIDE}
    kinds = (Kind.PARAM, Kind.GRAD, Kind.MAIN_GRAD, Kind.CLIPPED_GRAD, Kind.PARAM_AFTER)
    assert {shapes[kind] for kind in kinds} == {(64, 32)}
    assert any(r.shape[-1] == 64 for r in result.tensors if r.id.module == "output_layer")
    assert any("the first 64 are compared" in note.text for note in result.notes)


def test_an_isolated_run_leaves_padding_as_it_is(trials: Trials) -> None:
    bug = find("loud-tokens", Family.MEGATRON)
    wrong = trials.isolate(bug.reference, bug.candidate)
    assert bug.is_named_by(blames(wrong)), explain(wrong)
    twin = trials.isolate(bug.reference, bug.twin)
    assert twin.exit_code == 0, explain(twin)
