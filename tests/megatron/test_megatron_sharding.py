"""Layouts against the model's own sharded_state_dict, and modules that no table knows."""

from contextlib import ExitStack
from typing import Any

import pytest

from tests.support.tracing import explain
from ttrace.core.finding import Topic
from ttrace.core.ids import Kind
from ttrace.lab.functions import WorkerPool
from zoo.megatron.training import alone, on_ranks
from zoo.trials import Trials

LAYOUTS: dict[str, tuple[int, dict[str, Any]]] = {
    "tp2-sp": (2, {"tp": 2, "sp": True}),
    "tp2-sp-ep2-etp2": (4, {"tp": 2, "sp": True, "ep": 2, "etp": 2, "experts": 4}),
    "pp2-untied": (2, {"pp": 2, "untied": True}),
}


def second_opinion(fields: dict[str, Any], wrong: str = "") -> tuple[int, int, list[str]]:
    """How many parameters there are, how many sharded_state_dict describes, and the notes."""
    from zoo.megatron.cpu import on_cpu

    with on_cpu(), ExitStack() as stack:
        import gpt
        from megatron.core import parallel_state

        from ttrace.adapters.megatron.layouts import unwrapped, walk
        from ttrace.adapters.megatron.parameters import sharded_layouts
        from ttrace.adapters.registry import find_adapter

        layout = gpt.Layout(**(fields | {"layers": 2}))
        gpt.initialise(layout)
        stack.callback(parallel_state.destroy_model_parallel)
        chunks, _ = gpt.build(layout)
        if wrong:
            shard_by_columns(dict(walk(chunks))[wrong])
        adapter = find_adapter(chunks)
        known = [sharded_layouts(unwrapped(chunk))[0] for chunk in chunks]
        parameters = list(adapter.parameters())
        described = sum(any(p.tensor.data_ptr() in k for k in known) for p in parameters)
        return len(parameters), described, list(adapter.notes)


def shard_by_columns(module: Any) -> None:
    """What a checkpoint would keep, for a weight that is split by rows."""
    from megatron.core.transformer.utils import make_sharded_tensors_for_checkpoint

    def sharded(prefix: str, sharded_offsets: Any, metadata: Any) -> Any:
        return make_sharded_tensors_for_checkpoint(
            module.state_dict(prefix="", keep_vars=True),
            prefix,
            {"weight": 1},
            sharded_offsets,
            tp_group=module.tp_group,
            dp_cp_group=metadata["dp_cp_group"],
        )

    module.sharded_state_dict = sharded


@pytest.mark.parametrize("name", LAYOUTS)
def test_sharded_state_dict_agrees_about_every_parameter(name: str, pool: WorkerPool) -> None:
    ranks, layout = LAYOUTS[name]
    for count, described, notes in pool.run(ranks, second_opinion, layout):
        assert count == described > 0
        assert notes == []


def test_a_module_that_shards_its_checkpoint_otherwise_is_noted(pool: WorkerPool) -> None:
    linear = "decoder.layers.1.self_attention.linear_qkv"
    for _, _, notes in pool.run(2, second_opinion, {"tp": 2}, linear):
        assert any(f"{linear}.weight is laid out" in note for note in notes), notes
        assert all(linear in note for note in notes)


@pytest.mark.parametrize("own", ["own_module", "own_module_told"])
def test_a_module_of_the_users_own_is_laid_out_by_shape_or_as_it_says(
    own: str, trials: Trials
) -> None:
    model, planted = {"layers": 2, "microbatches": 2}, f"zoo.megatron.own_modules:{own}"

    result = trials.compare(alone(model, planted), on_ranks(2, model | {"tp": 2}, planted))

    assert result.exit_code == 0, explain(result)
    shapes = {r.id.slot: r.shape for r in result.tensors if r.id.kind is Kind.MAIN_GRAD}
    assert (shapes["up"], shapes["down"]) == ((64, 32), (32, 64))
    inferred = [note for note in result.notes if note.topic is Topic.INFERRED_LAYOUTS]
    assert len(inferred) == int(own == "own_module")
