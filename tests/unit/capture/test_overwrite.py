"""What an isolated run gets in place of its own values: the reference's, cut to what it holds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest
import torch
from torch import nn

from ttrace.adapters.base import Adapter, Coordinates, SentTokens
from ttrace.capture.noise import Noise
from ttrace.capture.overwrite import Overwriter
from ttrace.core.ids import TensorId
from ttrace.core.layout import Layout
from ttrace.core.logical import LogicalTensor, Piece
from ttrace.core.record import RankInfo, Record
from ttrace.core.scale import Scales
from ttrace.trace.dtypes import dtype_name
from ttrace.trace.plan import IsolationPlan, Position, PositionKey
from ttrace.trace.writer import TraceWriter

OUTPUT = TensorId.parse("step0/a:output.0")
GRAD_OUTPUT = TensorId.parse("step0/a:grad_output.0")
GRAD = TensorId.parse("step0/a:grad.weight")
MAIN_GRAD = TensorId.parse("step0/a:main_grad.weight")
LOSS = TensorId.parse("step0/:loss")
FULL = Layout.full((4, 6))
VALUES = torch.arange(24.0).reshape(4, 6) + 1


class OneOfTwo(Adapter):
    """A rank of two on one axis of tensor parallelism."""

    name = "one-of-two"

    def __init__(self, rank: int) -> None:
        super().__init__(nn.Linear(1, 1))
        self._rank = rank

    def coordinates(self) -> Coordinates:
        axes = {"tp": (self._rank, 2)}
        return Coordinates(rank=self._rank, world_size=2, axes=axes, batch=None)


class Reference:
    """A trace of one process, and the overwriters of the ranks that take their values from it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writer = TraceWriter(folder, RankInfo(rank=0, world_size=1))
        self._tensors: dict[TensorId, LogicalTensor] = {}

    def add(self, id_: TensorId, values: torch.Tensor) -> None:
        record = Record(
            id=id_,
            rank=0,
            sequence=0,
            dtype=dtype_name(values.dtype),
            shape=tuple(values.shape),
        )
        piece = Piece(
            layout=Layout.full(values.shape), records=(self._writer.write(record, values),)
        )
        self._tensors[id_] = LogicalTensor(shape=tuple(values.shape), pieces=(piece,))

    def add_terms(self, id_: TensorId, terms: list[torch.Tensor], layout: Layout) -> None:
        """The tensor as a sum over ranks, all of which write into this folder for once."""
        records = []
        for rank, term in enumerate(terms):
            writer = self._writer
            if rank > 0:
                writer = TraceWriter(self._folder, RankInfo(rank=rank, world_size=len(terms)))
            record = Record(
                id=id_,
                rank=rank,
                sequence=0,
                dtype="float32",
                shape=tuple(term.shape),
                layout=layout,
            )
            records.append(writer.write(record, term))
        piece = Piece(layout=layout, records=tuple(records))
        self._tensors[id_] = LogicalTensor(shape=layout.shape, pieces=(piece,))

    def overwriter(
        self,
        positions: Mapping[TensorId, Position],
        *,
        rank: int = 0,
        origin: int | None = None,
        scales: Scales | None = None,
        noise_seed: int | None = None,
        crops: Mapping[TensorId, tuple[int, int]] | None = None,
        kept: Iterable[TensorId] = (),
        probes: Mapping[TensorId, float] | None = None,
    ) -> Overwriter:
        plan = IsolationPlan(
            reference=self._folder,
            scales=scales or Scales(),
            positions={PositionKey(id_, 0, origin): p for id_, p in positions.items()},
            tensors=self._tensors,
            crops=crops or {},
            kept=frozenset(kept),
            probes=probes or {},
        )
        adapter = OneOfTwo(rank)
        noise = None if noise_seed is None else Noise(noise_seed, adapter)
        return Overwriter(plan, adapter, noise)


@pytest.fixture
def reference(tmp_path: Path) -> Reference:
    return Reference(tmp_path / "reference")


def at(layout: Layout, **more: tuple[int, int]) -> Position:
    return Position(layout=layout, outer=FULL, **more)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_gets_the_part_that_it_holds(reference: Reference, rank: int) -> None:
    reference.add(OUTPUT, VALUES)
    overwriter = reference.overwriter({OUTPUT: at(FULL.shard(1, rank, 2))}, rank=rank)
    found = overwriter.value(OUTPUT, 0, torch.zeros(4, 3), OUTPUT, None)
    assert found is not None
    assert found.equal(VALUES[:, 3 * rank : 3 * rank + 3])


def test_a_gradient_without_a_position_sits_where_its_value_does(reference: Reference) -> None:
    reference.add(GRAD_OUTPUT, VALUES)
    overwriter = reference.overwriter({OUTPUT: at(FULL.shard(0, 1, 2))})
    found = overwriter.value(GRAD_OUTPUT, 0, VALUES[2:], OUTPUT, None)
    assert found is not None
    assert found.equal(VALUES[2:])


def test_dims_that_were_recorded_in_another_order_are_put_back(reference: Reference) -> None:
    reference.add(OUTPUT, VALUES)
    overwriter = reference.overwriter({OUTPUT: at(FULL)})
    found = overwriter.value(OUTPUT, 0, torch.zeros(6, 4), OUTPUT, None, (1, 0))
    assert found is not None
    assert found.equal(VALUES.T)


def test_nothing_is_overwritten_where_the_reference_has_nothing_that_fits(
    reference: Reference,
) -> None:
    reference.add(OUTPUT, VALUES)
    reference.add(LOSS, torch.tensor(2.0))
    scalar = Position(layout=Layout.full(()), outer=Layout.full(()))
    overwriter = reference.overwriter({OUTPUT: at(FULL), LOSS: scalar})
    assert overwriter.value(MAIN_GRAD, 0, VALUES, MAIN_GRAD, None) is None  # not in the plan
    assert overwriter.value(OUTPUT, 1, VALUES, OUTPUT, None) is None  # another microbatch
    assert overwriter.value(OUTPUT, 0, torch.zeros(4, 5), OUTPUT, None) is None  # another size
    # All microbatches add to one number: no rank can be given a part of it.
    assert overwriter.value(LOSS, 0, torch.zeros(()), LOSS, None) is None


def test_padding_keeps_what_the_rank_had(reference: Reference) -> None:
    reference.add(MAIN_GRAD, VALUES)
    padded = Layout.full((6, 6))
    overwriter = reference.overwriter({MAIN_GRAD: at(FULL)}, crops={MAIN_GRAD: (0, 4)})
    found = overwriter.value(MAIN_GRAD, 0, torch.full((6, 6), -7.0), MAIN_GRAD, padded)
    assert found is not None
    assert found[:4].equal(VALUES)
    assert (found[4:] == -7).all()


def test_terms_of_a_partial_sum_add_up_exactly_and_share_no_element(reference: Reference) -> None:
    reference.add(OUTPUT, VALUES)
    terms = []
    for rank in range(2):
        overwriter = reference.overwriter({OUTPUT: at(FULL.summed_over("tp"))}, rank=rank)
        term = overwriter.value(OUTPUT, 0, torch.zeros(4, 6), OUTPUT, None)
        assert term is not None
        terms.append(term)
    assert (terms[0] + terms[1]).equal(VALUES)
    assert not (terms[0] * terms[1]).any()
    assert all(term.any() for term in terms)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_reference_in_the_same_layout_gives_each_rank_its_own_term(
    reference: Reference, rank: int
) -> None:
    terms = [VALUES * 0.25, VALUES * 0.75]
    layout = FULL.summed_over("tp")
    reference.add_terms(OUTPUT, terms, layout)
    overwriter = reference.overwriter({OUTPUT: at(layout)}, rank=rank)
    found = overwriter.value(OUTPUT, 0, torch.zeros(4, 6), OUTPUT, None)
    assert found is not None
    assert found.equal(terms[rank])


def test_shares_of_a_gradient_to_which_all_microbatches_add_are_the_whole(
    reference: Reference,
) -> None:
    reference.add(GRAD, VALUES)
    shares = []
    for index in range(3):
        overwriter = reference.overwriter({GRAD: at(FULL, share=(index, 3))})
        share = overwriter.value(GRAD, 0, VALUES, GRAD, None)
        assert share is not None
        shares.append(share)
    assert torch.stack(shares).sum(0).equal(VALUES)
    assert (torch.stack(shares) != 0).sum(0).eq(1).all()


def test_the_first_gradient_of_a_microbatch_tells_the_scale_of_its_loss(
    reference: Reference,
) -> None:
    reference.add(GRAD_OUTPUT, VALUES)
    reference.add(GRAD, VALUES)
    overwriter = reference.overwriter(
        {GRAD_OUTPUT: at(FULL), GRAD: at(FULL)}, scales=Scales(allowed=(1.0, 0.5), likely=1.0)
    )
    first = overwriter.value(GRAD_OUTPUT, 0, VALUES * 0.5, GRAD_OUTPUT, None)
    later = overwriter.value(GRAD, 0, VALUES, GRAD, None)
    assert first is not None
    assert later is not None
    assert first.equal(VALUES * 0.5)
    assert later.equal(VALUES * 0.5)


def test_tokens_that_a_rank_was_sent_come_from_their_places(reference: Reference) -> None:
    reference.add(OUTPUT, VALUES)
    overwriter = reference.overwriter({OUTPUT: at(FULL)}, origin=1)
    sent = SentTokens(origin=1, rows=torch.tensor([2, 0]), places=torch.tensor([3, 1]), layout=FULL)
    found = overwriter.sent(OUTPUT, 0, torch.ones(3, 6), OUTPUT, [sent])
    assert found is not None
    assert found.equal(torch.stack([VALUES[1], torch.zeros(6), VALUES[3]]))
    stranger = SentTokens(origin=0, rows=sent.rows, places=sent.places, layout=FULL)
    assert overwriter.sent(OUTPUT, 0, torch.ones(3, 6), OUTPUT, [stranger]) is None


@pytest.mark.parametrize("noisy", [False, True])
def test_what_belongs_to_a_parameter_is_overwritten_in_place(
    reference: Reference, noisy: bool
) -> None:
    values = VALUES / 4
    reference.add(MAIN_GRAD, values)
    overwriter = reference.overwriter({MAIN_GRAD: at(FULL)}, noise_seed=3)
    gradient = torch.zeros(4, 6)
    overwriter.fill(MAIN_GRAD, gradient, noisy=noisy)
    torch.testing.assert_close(gradient, values, rtol=1e-6, atol=0)
    assert gradient.equal(values) != noisy


def test_what_is_kept_stays_as_it_was_but_for_noise(reference: Reference) -> None:
    reference.add(OUTPUT, VALUES)
    own = VALUES + 0.3
    alone = reference.overwriter({OUTPUT: at(FULL)}, kept=[OUTPUT])
    noisy = reference.overwriter({OUTPUT: at(FULL)}, kept=[OUTPUT], noise_seed=1)
    found, moved = (each.value(OUTPUT, 0, own, OUTPUT, None) for each in (alone, noisy))
    assert found is not None
    assert found.equal(own)
    assert moved is not None
    assert not moved.equal(own)
    assert torch.allclose(moved, own, rtol=1e-6)


def test_a_probe_is_an_error_of_the_size_that_is_asked_for(reference: Reference) -> None:
    reference.add(OUTPUT, VALUES)
    own = torch.randn(200, 300)
    probing = reference.overwriter({OUTPUT: at(FULL)}, kept=[OUTPUT], probes={OUTPUT: 0.01})
    found = probing.value(OUTPUT, 0, own, OUTPUT, None)
    assert found is not None
    assert float((found - own).norm() / own.norm()) == pytest.approx(0.01, rel=0.05)
