"""One logical step, written as two traces in different layouts, must come out equal."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.properties.strategies import (
    ACTIVATIONS,
    Changed,
    Chosen,
    Plan,
    Tensor,
    id_of,
    keep,
    one_rank,
    pairs,
    records,
    write,
)
from ttrace.analysis.align import Aligned, Aligner
from ttrace.analysis.batch import notes_of
from ttrace.analysis.compare import Comparator, Measured
from ttrace.analysis.sources import Source
from ttrace.core.ids import Kind, TensorId
from ttrace.core.logical import Alignment
from ttrace.core.record import Record
from ttrace.trace.spans import SpanReader


@dataclass(frozen=True)
class Outcome:
    aligned: Aligned
    measured: dict[TensorId, Measured]

    def of(self, id_: TensorId) -> Alignment:
        return next(a for a in self.aligned.tensors if a.id == id_)

    def fault(self, id_: TensorId) -> str:
        """Why the tensor is not exactly that of the reference; empty when it is."""
        found = self.of(id_)
        if id_ not in self.measured:
            gaps = [side.gaps for side in (found.reference, found.candidate) if side is not None]
            return f"{found.reference_problem} {found.candidate_problem} {gaps}"
        measured = self.measured[id_]
        ranks = [d.ranks for d in measured.disagreements]
        return (
            f"ranks {ranks} disagree" if ranks else "" if measured.statistics.equal else "unequal"
        )


@contextmanager
def compared(
    tensors: list[Tensor], reference: Plan, candidate: Plan, change: Changed = keep
) -> Iterator[Outcome]:
    # The reference is trusted to say what it holds, so it never leaves a layout to be inferred.
    known = [replace(t, style="known") if t.style == "inferred" else t for t in tensors]
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        traces = {
            "reference": write(root / "reference", reference, known),
            "candidate": write(root / "candidate", candidate, tensors, change),
        }
        sources = [
            Source(role, trace, stack.enter_context(SpanReader(trace.path)))
            for role, trace in traces.items()
        ]
        aligned = Aligner(sources[0]).align(sources[1])
        comparator = Comparator(*(source.spans for source in sources))
        measured = {
            a.id: comparator.measure(a.reference, a.candidate)
            for a in aligned.tensors
            if a.reference and a.candidate and not a.reference.gaps and not a.candidate.gaps
        }
        assert {a.id for a in aligned.tensors} == {tensor.id for tensor in tensors}
        yield Outcome(aligned, measured)


@pytest.mark.flow
@given(pairs())
@settings(max_examples=100, deadline=None)
def test_every_layout_of_a_step_is_equal(pair: tuple[list[Tensor], Plan, Plan]) -> None:
    with compared(*pair) as outcome:
        assert notes_of(outcome.aligned.candidate_batches) == []
        assert {str(t.id): f for t in pair[0] if (f := outcome.fault(t.id))} == {}


@given(st.permutations(range(4)), st.sampled_from(ACTIVATIONS))
@settings(max_examples=10, deadline=None)
def test_one_batch_in_another_order_is_the_same_batch(order: list[int], kind: Kind) -> None:
    tokens, values = torch.arange(20).reshape(4, 5), torch.arange(36.0).reshape(4, 9)
    tensors = [Tensor(id_of("", Kind.INPUT), tokens), Tensor(id_of("layer", kind), values)]
    reordered = Plan(dp=1, tp=2, groups=(tuple(order),))
    with compared(tensors, one_rank(4), reordered) as outcome:
        assert [outcome.fault(tensor.id) for tensor in tensors] == ["", ""]


def test_a_number_that_one_microbatch_recomputed_is_the_mean_and_compared_with_itself() -> None:
    tokens, number = torch.arange(20).reshape(4, 5), torch.tensor([3.0, 3.0, 5.0, 5.0])
    output = Tensor(id_of("router", Kind.OUTPUT), number, "mean")
    tensors = [Tensor(id_of("", Kind.INPUT), tokens), output]
    plan = Plan(dp=1, tp=1, groups=((0, 1), (2, 3)), recomputed=((output.id, 1),))

    def disturb(record: Record, value: torch.Tensor) -> torch.Tensor:
        return value + (record.id == output.id and record.microbatch == 1)

    with compared(tensors, one_rank(4), plan) as outcome:
        assert outcome.fault(output.id) == ""
    with compared(tensors, one_rank(4), plan, disturb) as outcome:
        (disagreement,) = outcome.measured[output.id].disagreements
        assert disagreement.recompute


@pytest.mark.flow
@given(records())
@settings(max_examples=60, deadline=None)
def test_a_dropped_piece_is_missed_where_it_was(chosen: Chosen) -> None:
    tensors, plan, tensor, (rank, d, t, m) = chosen
    everyone = tuple(range(len(tensors[0].values)))
    copies = {"batch": 1, "sum": 1, "shared": len(plan.groups), "param": plan.dp}[tensor.role]
    if tensor.is_whole_on(plan):
        copies *= plan.tp
    # A shard whose layout is inferred, or a term, is missed even if other ranks hold a copy.
    vital = copies == 1 or (not tensor.is_whole_on(plan) and tensor.style != "known")

    def drop(record: Record, value: torch.Tensor) -> torch.Tensor | None:
        dropped = (tensor.id, rank, m)
        return None if (record.id, record.rank, record.microbatch) == dropped else value

    with compared(tensors, one_rank(len(everyone)), plan, drop) as outcome:
        faults = {other.id: fault for other in tensors if (fault := outcome.fault(other.id))}
        found = outcome.of(tensor.id)
    assert list(faults) == ([tensor.id] if vital else [])
    if found.candidate is not None and found.candidate.gaps:
        missing = torch.zeros(found.candidate.shape, dtype=torch.bool)
        for box in found.candidate.gaps:
            missing[tuple(map(slice, box.start, box.stop))] = True
        indices = torch.arange(tensor.values.numel()).reshape(tensor.values.shape)
        places = replace(tensor, values=indices)
        expected = places.local(plan.samples(d, m), t, plan.tp)[0]
        assert places.of(everyone)[missing].unique().equal(expected.unique())
    elif vital and found.candidate_problem:
        assert f"microbatch {m}" in found.candidate_problem
    elif vital:
        # Nothing is left of it, or nothing but its value says that a loss was added up from fewer,
        # or that a gradient which no rank has is not zero.
        pieces = () if found.candidate is None else found.candidate.pieces
        is_zero = any(piece.factor == 0 for piece in pieces)
        assert not pieces or tensor.id.kind is Kind.LOSS or is_zero


@given(records(replicas=True))
@settings(max_examples=40, deadline=None)
def test_a_replica_with_another_value_is_named_by_its_rank(chosen: Chosen) -> None:
    tensors, plan, tensor, (rank, _, _, m) = chosen

    def disturb(record: Record, value: torch.Tensor) -> torch.Tensor:
        if (record.id, record.rank, record.microbatch) != (tensor.id, rank, m):
            return value
        changed = value.clone()
        changed[(-1,) * changed.dim()] += 1
        return changed

    with compared(tensors, one_rank(len(tensors[0].values)), plan, disturb) as outcome:
        measured = outcome.measured[tensor.id]
    assert measured.statistics.equal
    (disagreement,) = measured.disagreements
    assert rank in disagreement.ranks
    assert disagreement.statistics.unequal == 1
    assert tensor.role == "sum" or disagreement.ranks == (rank,)


@given(records())
@settings(max_examples=25, deadline=None)
def test_a_changed_tensor_is_unequal_and_no_other_is(chosen: Chosen) -> None:
    tensors, plan, tensor, _ = chosen
    first = {info.rank for info, _, t in plan.ranks() if t == 0 or tensor.style != "partial"}

    def disturb(record: Record, value: torch.Tensor) -> torch.Tensor:
        return value + 1 if record.id == tensor.id and record.rank in first else value

    with compared(tensors, one_rank(len(tensors[0].values)), plan, disturb) as outcome:
        faults = {other.id: fault for other in tensors if (fault := outcome.fault(other.id))}
    assert faults == {tensor.id: "unequal"}


@given(pairs())
@settings(max_examples=10, deadline=None)
def test_unknown_samples_are_placed_by_position_and_said_so(
    pair: tuple[list[Tensor], Plan, Plan],
) -> None:
    tensors, _, plan = pair
    order = list(range(len(tensors[0].values)))
    sizes = itertools.accumulate(map(len, plan.groups), initial=0)
    groups = tuple(tuple(order[a:b]) for a, b in itertools.pairwise(sizes))

    def disturb(record: Record, value: torch.Tensor) -> torch.Tensor:
        return value + (1 << 20) if record.id == tensors[0].id else value

    in_order = replace(plan, groups=groups, knows_batch=True)
    with compared(tensors, one_rank(len(order)), in_order, disturb) as outcome:
        (note,) = notes_of(outcome.aligned.candidate_batches)
        assert "not rows of the reference's" in note
        faults = {t.id: fault for t in tensors if (fault := outcome.fault(t.id))}
        assert faults == {tensors[0].id: "unequal"}
