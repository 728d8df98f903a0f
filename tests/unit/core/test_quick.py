from __future__ import annotations

import os
import pickle
import subprocess
import sys
from dataclasses import FrozenInstanceError, replace

import pytest

from ttrace.core.ids import Kind, TensorId
from ttrace.core.layout import Layout
from ttrace.core.record import Location, PayloadRef

ID = TensorId.parse("step0/layers.1.wq:output.0")


def test_equal_values_have_equal_hashes_and_others_do_not() -> None:
    assert hash(ID) == hash(TensorId.parse(str(ID)))
    assert hash(ID) != hash(TensorId.parse("step0/layers.1.wq:output.1"))
    full = Layout.full((4, 8))
    assert hash(full.shard(0, 0, 1)) == hash(full)
    assert hash(full.summed_over("tp")) != hash(full)
    assert hash(PayloadRef(name="a", parameters={"x": [1]})) != hash(
        PayloadRef(name="a", parameters={"x": [2]})
    )


@pytest.mark.flow
def test_a_hash_does_not_travel_to_a_process_in_which_texts_have_others() -> None:
    hash(ID)
    code = (
        "import pickle, sys; from ttrace.core.ids import Kind, TensorId;"
        "found = pickle.load(sys.stdin.buffer);"
        "assert {TensorId.parse(str(found)): 1}[found] == 1"
    )
    for seed in ("1", "2"):
        subprocess.run(
            [sys.executable, "-c", code],
            input=pickle.dumps(ID),
            env=os.environ | {"PYTHONHASHSEED": seed},
            check=True,
        )


def test_what_is_made_quickly_is_made_as_a_dataclass_is() -> None:
    assert TensorId(step=0, module="layers.1.wq", kind=Kind.OUTPUT, slot="0") == ID
    assert replace(ID, call=1).call == 1
    with pytest.raises(TypeError, match="xxh3"):
        Location(segment="seg-00000.safetensors", offset=0, size_bytes=4)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="positional"):
        TensorId(0, "a", Kind.OUTPUT)  # type: ignore[call-arg]
    with pytest.raises(FrozenInstanceError):
        ID.step = 1  # type: ignore[misc]
