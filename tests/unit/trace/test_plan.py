from __future__ import annotations

from pathlib import Path

from ttrace.core.ids import Kind, TensorId
from ttrace.core.layout import Layout
from ttrace.core.logical import LogicalTensor, Piece
from ttrace.core.record import Location, Record
from ttrace.core.scale import Scales
from ttrace.trace.plan import IsolationPlan, Position, PositionKey, plan_file

OUTPUT = TensorId(step=0, module="layers.0", kind=Kind.OUTPUT, slot="0")
WEIGHT = TensorId(step=0, module="head", kind=Kind.MAIN_GRAD, slot="weight")
WHOLE = Layout.full((4, 6))


def record_of(id_: TensorId, rank: int) -> Record:
    return Record(
        id=id_,
        rank=rank,
        sequence=3,
        dtype="float32",
        shape=(2, 6),
        layout=WHOLE.shard(0, rank, 2),
        location=Location(segment="seg-00000.safetensors", offset=64, size_bytes=48, xxh3="0" * 16),
    )


def plan() -> IsolationPlan:
    pieces = tuple(
        Piece(layout=WHOLE.shard(0, rank, 2), records=(record_of(OUTPUT, rank),), factor=0.5)
        for rank in range(2)
    )
    return IsolationPlan(
        reference=Path("/traces/reference"),
        scales=Scales(allowed=(1.0, 0.5), likely=0.5),
        positions={
            PositionKey(OUTPUT, 0, None): Position(layout=WHOLE, outer=WHOLE),
            PositionKey(OUTPUT, 1, 3): Position(
                layout=WHOLE.shard(1, 0, 3), outer=WHOLE, share=(1, 4)
            ),
        },
        tensors={OUTPUT: LogicalTensor(shape=(4, 6), pieces=pieces)},
        crops={WEIGHT: (0, 50257)},
        modules=frozenset({"", "layers.0"}),
    )


def test_plan_comes_back_as_it_was_written(tmp_path: Path) -> None:
    file = plan_file(tmp_path, 7)
    plan().write(file)
    assert file.name == "plan-00007.json"
    assert IsolationPlan.read(file) == plan()


def test_positions_are_told_apart_by_microbatch_and_by_the_rank_that_sent_the_tokens() -> None:
    positions = plan().positions
    assert PositionKey(OUTPUT, 1, 3) in positions
    assert PositionKey(OUTPUT, 1, None) not in positions
    assert PositionKey(OUTPUT, 0, 3) not in positions
