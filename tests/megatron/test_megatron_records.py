"""Every record of a Megatron run says its layer by the global number, and its microbatch."""

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from ttrace.capture.settings import Settings
from ttrace.core.ids import Kind
from ttrace.lab.functions import WorkerPool
from ttrace.lab.launch import LocalExecutor
from ttrace.lab.run import TracedRun
from ttrace.trace.reader import Trace
from zoo.megatron.training import on_ranks

Calls = dict[str, set[tuple[int, int]]]  # module -> rank and microbatch of its records


def calls(pool: WorkerPool, folder: Path, kind: Kind, **layout: Any) -> Calls:
    run = TracedRun(name="candidate", work=on_ranks(2, layout), settings=Settings(folder=folder))
    LocalExecutor(pool)(run)
    found: Calls = defaultdict(set)
    for records in Trace.open(folder).by_id().values():
        for record in records:
            if record.id.kind is kind:
                found[record.id.module].add((record.rank, record.microbatch))
    return found


@pytest.mark.parametrize("kind", [Kind.INPUT, Kind.GRAD_INPUT])
def test_layers_of_virtual_stages_are_numbered_globally(
    kind: Kind, pool: WorkerPool, tmp_path: Path
) -> None:
    found = calls(pool, tmp_path, kind, pp=2, vpp=2, layers=4, microbatches=4)
    for layer in range(4):  # chunks take turns: 0 and 2 on the first rank, 1 and 3 on the second
        expected = {(layer % 2, microbatch) for microbatch in range(4)}
        assert found[f"decoder.layers.{layer}.mlp"] == expected
    ends = [{rank for rank, _ in found[name]} for name in ("embedding", "output_layer")]
    assert ends == ([set(), {1}] if kind is Kind.GRAD_INPUT else [{0}, {1}])


def test_a_multi_token_head_is_a_layer_of_its_own(pool: WorkerPool, tmp_path: Path) -> None:
    layout = {"layers": 2, "microbatches": 2, "mtp": 1, "tp": 2, "sp": True}
    found = calls(pool, tmp_path, Kind.OUTPUT, **layout)
    everywhere = {(rank, microbatch) for rank in range(2) for microbatch in range(2)}
    heads = [module for module in found if module.startswith("mtp.layers.0.")]
    assert {"mtp.layers.0.eh_proj", "mtp.layers.0.enorm"} <= set(heads)
    assert all(found[module] == everywhere for module in heads)
