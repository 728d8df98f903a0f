"""Dims get other sizes, more ranks split them, and a batch has more samples."""

from fractions import Fraction

import pytest

from tests.support.made_traces import record_of
from ttrace.analysis.estimate.axes import places_of, split_dims
from ttrace.analysis.estimate.resized import asked_sizes, resized
from ttrace.core.layout import Layout
from ttrace.core.record import RankInfo, Record
from ttrace.errors import UsageError

ONE = Fraction(1)


def shard(index: int, count: int, dim: int = 0) -> Record:
    layout = Layout.full((8, 6)).shard(dim, index, count)
    return record_of("w:param.weight", index, layout.local_shape, layout=layout)


def test_a_shard_of_a_larger_tensor_among_more_ranks() -> None:
    found = resized(shard(1, 2), {8: 64, 6: 10}, {0: Fraction(4)}, ONE)
    assert found.shape == (8, 10)
    assert found.layout is not None
    assert (found.layout.shape, str(found.layout)) == ((64, 10), "[32:40, 0:10]")


def test_parts_that_do_not_divide_are_rounded_up() -> None:
    assert resized(shard(0, 1), {}, {0: Fraction(3)}, ONE).shape == (3, 6)
    assert resized(record_of("w:param.weight", 0, (7,)), {}, {0: Fraction(2)}, ONE).shape == (4,)


def test_only_activations_have_samples() -> None:
    twice = Fraction(2)
    assert resized(record_of("a:output.0", 0, (3, 5)), {}, {}, twice).shape == (6, 5)
    assert resized(record_of("a:output.0", 0, (3, 5), batch_dim=1), {}, {}, twice).shape == (3, 10)
    assert resized(record_of("a:output.0", 0, (3, 5), batch_dim=-1), {}, {}, twice).shape == (3, 5)
    assert resized(record_of("a:param.weight", 0, (3, 5)), {}, {}, twice).shape == (3, 5)


def test_what_changes_nothing_is_the_same_record() -> None:
    record = shard(0, 2)
    assert resized(record, {5: 50}, {}, ONE) is record


def test_the_split_is_where_layouts_of_neighbours_differ() -> None:
    assert split_dims(shard(0, 2), shard(1, 2), is_data=False) == (0,)
    assert split_dims(shard(0, 2, dim=1), shard(1, 2, dim=1), is_data=False) == (1,)
    assert split_dims(shard(0, 1), shard(0, 1), is_data=False) == ()
    without = record_of("a:output.0", 0, (3, 5))
    assert split_dims(without, without, is_data=False) is None
    assert split_dims(without, without, is_data=True) == ()


def test_places_are_by_the_mesh_or_else_data_parallel() -> None:
    def info(rank: int, dp: int, tp: int) -> RankInfo:
        axes = {"dp": (dp, 2), "tp": (tp, 2)}
        return RankInfo(rank=rank, world_size=4, axes=axes, batch=(dp, 2))

    found = places_of({rank: info(rank, rank // 2, rank % 2) for rank in range(4)})
    assert (found.sizes, found.data) == ({"dp": 2, "tp": 2}, frozenset({"dp"}))
    assert (found.neighbour(3, "dp"), found.neighbour(3, "tp")) == (1, 2)
    plain = places_of({rank: RankInfo(rank=rank, world_size=2) for rank in range(2)})
    assert (plain.sizes, plain.data) == ({"dp": 2}, frozenset({"dp"}))


@pytest.mark.parametrize("text", ["128", "128=", "=8", "a=8", "0=8", "8=0"])
def test_sizes_that_are_none_are_refused(text: str) -> None:
    assert asked_sizes(["128=8192, 4=8", "2=3"]) == {128: 8192, 4: 8, 2: 3}
    with pytest.raises(UsageError, match="OLD=NEW"):
        asked_sizes([text])
