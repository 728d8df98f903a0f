"""What shapes say where no layout is known."""

import pytest

from tests.support.made_traces import batch_of, record_of, trace_of
from ttrace.analysis.align.holdings import Cut, Holdings, without
from ttrace.analysis.align.infer import OwnShape, cuts_of, infer_layout, own_shape
from ttrace.core.layout import Layout, Run
from ttrace.core.record import Record

HALVES = batch_of(4, {(0, 0): (0, 2), (1, 0): (2, 2)})  # two data-parallel ranks
TOGETHER = batch_of(4, {(0, 0): (0, 4), (1, 0): (0, 4)})  # two ranks with the same samples


class TestOwnShape:
    def test_the_batch_dim_grows_to_the_whole_batch(self) -> None:
        records = [record_of("a:output.0", rank, (2, 6)) for rank in (0, 1)]
        assert own_shape(Holdings(trace_of(*records), HALVES), records) == OwnShape((4, 6))

    def test_a_parameter_has_no_samples(self) -> None:
        records = [record_of("a:param.weight", rank, (2, 6), value="same") for rank in (0, 1)]
        assert own_shape(Holdings(trace_of(*records), HALVES), records) == OwnShape((2, 6))

    def test_a_table_that_all_samples_share_does_not_grow(self) -> None:
        records = [record_of("a:output.0", rank, (7, 6), value="table") for rank in (0, 1)]
        assert own_shape(Holdings(trace_of(*records), HALVES), records) == OwnShape((7, 6))

    def test_a_table_with_a_row_for_each_sample_is_a_guess(self) -> None:
        records = [record_of("a:output.0", rank, (2, 6), value="zeros") for rank in (0, 1)]
        found = own_shape(Holdings(trace_of(*records), HALVES), records)
        assert found == OwnShape((4, 6), guessed=True)

    def test_the_framework_may_say_where_the_samples_are(self) -> None:
        records = [record_of("a:output.0", rank, (8, 2, 6), batch_dim=1) for rank in (0, 1)]
        assert own_shape(Holdings(trace_of(*records), HALVES), records) == OwnShape((8, 4, 6))
        none = [record_of("a:output.0", rank, (2, 6), batch_dim=-1) for rank in (0, 1)]
        assert own_shape(Holdings(trace_of(*none), HALVES), none) == OwnShape((2, 6))

    def test_ranks_with_the_same_samples_and_other_values_are_stacked(self) -> None:
        records = [record_of("a:output.0", rank, (4, 6)) for rank in (0, 1)]
        found = own_shape(Holdings(trace_of(*records), TOGETHER), records)
        assert found == OwnShape((8, 6), stacked=True)

    def test_a_known_layout_says_the_shape(self) -> None:
        layout = Layout.full((4, 6))
        records = [
            record_of("a:output.0", rank, (4, 3), layout=layout.shard(1, rank, 2))
            for rank in (0, 1)
        ]
        assert own_shape(Holdings(trace_of(*records), TOGETHER), records) == OwnShape((4, 6))


class TestLayout:
    def columns(self, *widths: int) -> list[Record]:
        return [record_of("a:output.0", rank, (4, width)) for rank, width in enumerate(widths)]

    @pytest.mark.parametrize(("widths", "runs"), [((3, 3), (3, 3)), ((4, 2), (4, 2))])
    def test_ranks_hold_chunks_in_their_order(
        self, widths: tuple[int, int], runs: tuple[int, int]
    ) -> None:
        records = self.columns(*widths)
        holdings = Holdings(trace_of(*records), TOGETHER)
        first, second = (infer_layout(holdings, record, records, (4, 6)) for record in records)
        whole = Layout.full((4, 6))
        assert first == whole.take(1, [Run(0, runs[0])])
        assert second == whole.take(1, [Run(runs[0], runs[1])])

    def test_the_whole_is_no_part(self) -> None:
        records = self.columns(6, 6)
        holdings = Holdings(trace_of(*records), TOGETHER)
        assert infer_layout(holdings, records[0], records, (4, 6)) == Layout.full((4, 6))

    @pytest.mark.parametrize(
        ("records", "whole"),
        [
            ([(4, 3), (4, 2)], (4, 6)),  # 3 + 2 columns are not 6
            ([(4, 3)], (4, 6)),  # nobody holds the others
            ([(2, 3), (2, 3)], (4, 6)),  # two dims differ: which is split by what?
        ],
        ids=["too-few", "one-rank", "two-dims"],
    )
    def test_what_does_not_add_up_is_not_guessed(
        self, records: list[tuple[int, int]], whole: tuple[int, int]
    ) -> None:
        found = [record_of("a:output.0", rank, shape) for rank, shape in enumerate(records)]
        holdings = Holdings(trace_of(*found), TOGETHER)
        assert infer_layout(holdings, found[0], found, whole) is None

    def test_one_mesh_axis_of_several_may_split_it(self) -> None:
        axes = {rank: {"tp": (rank % 2, 2), "cp": (rank // 2, 2)} for rank in range(4)}
        records = self.columns(3, 3, 3, 3)
        batch = batch_of(4, {(rank, 0): (0, 4) for rank in range(4)})
        holdings = Holdings(trace_of(*records, axes=axes), batch)
        found = [infer_layout(holdings, record, records, (4, 6)) for record in records]
        left, right = (Layout.full((4, 6)).shard(1, index, 2) for index in (0, 1))
        assert found == [left, right, left, right]


def test_samples_of_a_dim_that_the_framework_names_are_cut_there() -> None:
    record = record_of("a:output.0", 1, (8, 2, 6), batch_dim=1)
    holdings = Holdings(trace_of(record, axes={0: {}}), HALVES)
    assert cuts_of(holdings, record, (8, 4, 6)) == [
        Cut(Layout.full((8, 4, 6)).take(1, [Run(2, 2)]))
    ]
    assert cuts_of(holdings, record, (8, 3, 6)) == []


def test_an_axis_within_another_is_left_out_with_it() -> None:
    axes = {"pp": (0, 2), "tp": (1, 2), "dp": (0, 1)}
    assert without(axes, ["pp.embedding"]) == {"tp": (1, 2), "dp": (0, 1)}
    assert without(axes, []) == axes
