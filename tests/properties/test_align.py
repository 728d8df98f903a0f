"""One logical step, written as two traces in different layouts, must come out equal.

All values are small integers, so that sums over ranks and microbatches are exact in any order. A
sequence is longer than a batch has samples: a position table with as many rows as a microbatch has
samples cannot be told from an activation, nor can flat tokens with as many columns.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ttrace.align import Aligned, Alignment, align
from ttrace.compare import Comparator, Measured
from ttrace.core.ids import Kind, TensorId
from ttrace.core.layout import Layout
from ttrace.core.reader import SpanReader, Trace
from ttrace.core.record import RankInfo, Record, Summary
from ttrace.core.writer import TraceWriter, dtype_name

SUMMARY = Summary(steps=1, hooks_expected=0, hooks_fired=0)
ACTIVATIONS = (Kind.INPUT, Kind.OUTPUT, Kind.GRAD_OUTPUT, Kind.GRAD_INPUT)

Changed = Callable[[Record, torch.Tensor], torch.Tensor | None]


@dataclass(frozen=True)
class Plan:
    """How a run is parallel, and which samples each microbatch of each data-parallel rank holds."""

    dp: int
    tp: int
    groups: tuple[tuple[int, ...], ...]  # number d * microbatches + m
    tp_is_fast: bool = True
    knows_batch: bool = True

    @property
    def microbatches(self) -> int:
        return len(self.groups) // self.dp

    def ranks(self) -> Iterator[tuple[RankInfo, int, int]]:
        for d in range(self.dp):
            for t in range(self.tp):
                info = RankInfo(
                    rank=d * self.tp + t if self.tp_is_fast else t * self.dp + d,
                    world_size=self.dp * self.tp,
                    axes={"dp": (d, self.dp), "tp": (t, self.tp)},
                    batch=(d, self.dp) if self.knows_batch else None,
                )
                yield info, d, t


@dataclass(frozen=True)
class Tensor:
    """A logical tensor. `values` have the samples in front, unless it is the same for all."""

    id: TensorId
    values: torch.Tensor
    role: str = "batch"  # batch | shared | sum (over samples) | param
    style: str = (
        "replicated"  # what tensor parallelism does: replicated | known | inferred | partial
    )
    dim: int = 0
    way: str = "shard"
    form: str = "batch first"  # or sequence first | flat

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        of = f"{self.form}, {self.style}, {self.way} of dim {self.dim}"
        printer.text(f"<{self.id}: {self.role}, {of}>")

    def of(self, samples: tuple[int, ...]) -> torch.Tensor:
        if self.role in ("shared", "param"):
            return self.values
        held = self.values[list(samples)]
        if self.role == "sum":
            return held.sum(0).to(self.values.dtype)
        if self.form == "flat":
            return held.flatten(0, 1)
        return held.transpose(0, 1) if self.form == "sequence first" else held

    def local(
        self, samples: tuple[int, ...], t: int, tp: int
    ) -> tuple[torch.Tensor, Layout | None]:
        """What tensor-parallel rank `t` holds of these samples, and the layout it knows."""
        mine = self.of(samples)
        full = Layout.full(mine.shape)
        if self.style == "replicated" or not mine.dim():
            return mine, None
        if self.style == "partial":
            term = torch.full_like(mine, t + 1) if t else mine - sum(range(2, tp + 1))
            return term, full.summed_over("tp")
        layout = self._split(full, t, tp)
        indices = [
            [run.start + i for run in runs for i in range(run.length)] for runs in layout.runs
        ]
        return mine[np.ix_(*indices)], layout if self.style == "known" else None

    def _split(self, full: Layout, t: int, tp: int) -> Layout:
        dim = self.dim % len(full.shape)
        size = full.shape[dim]
        if self.style == "known" and self.way == "zigzag" and size % (2 * tp) == 0:
            return full.zigzag(dim, t, tp)
        if self.style == "known" and self.way == "sections" and size % (2 * tp) == 0:
            return full.interleaved(dim, (size // 2, size // 2), t, tp)
        return full.shard(dim, t, tp)

    def is_whole_on(self, plan: Plan) -> bool:
        """Whether every tensor-parallel rank holds all of its microbatch."""
        return plan.tp == 1 or self.style == "replicated" or not self.of((0,)).dim()


def keep(record: Record, tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def write(root: Path, plan: Plan, tensors: list[Tensor], change: Changed = keep) -> Trace:
    for info, d, t in plan.ranks():
        writer = TraceWriter(root, info)
        for m in range(plan.microbatches):
            for sequence, tensor in enumerate(tensors):
                if tensor.role == "param" and m:
                    continue
                local, layout = tensor.local(plan.groups[d * plan.microbatches + m], t, plan.tp)
                record = Record(
                    id=tensor.id,
                    rank=info.rank,
                    sequence=sequence,
                    dtype=dtype_name(local.dtype),
                    shape=tuple(local.shape),
                    microbatch=m,
                    layout=layout,
                )
                kept = change(record, local)
                if kept is not None:
                    writer.write(record, kept)
        writer.close(SUMMARY)
    return Trace.open(root)


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
        ranks = [d.piece.ranks for d in measured.disagreements]
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
        ours = write(root / "reference", reference, known)
        theirs = write(root / "candidate", candidate, tensors, change)
        our_spans, their_spans = (stack.enter_context(SpanReader(t.path)) for t in (ours, theirs))
        aligned = align(ours, theirs, reference_spans=our_spans, candidate_spans=their_spans)
        comparator = Comparator(our_spans, their_spans)
        measured = {
            a.id: comparator.measure(a.reference, a.candidate)
            for a in aligned.tensors
            if a.reference and a.candidate and not a.reference.gaps and not a.candidate.gaps
        }
        assert {a.id for a in aligned.tensors} == {tensor.id for tensor in tensors}
        yield Outcome(aligned, measured)


def id_of(module: str, kind: Kind, slot: str = "0") -> TensorId:
    return TensorId(step=0, module=module, kind=kind, slot=slot)


@st.composite
def plans(draw: st.DrawFn, batch: int, *, dp: int = 2, tp: int = 3, microbatches: int = 2) -> Plan:
    data, count = draw(st.integers(1, dp)), draw(st.integers(1, microbatches))
    inside = st.integers(1, batch - 1)
    parts = data * count
    cuts = draw(st.lists(inside, min_size=parts - 1, max_size=parts - 1, unique=True))
    order = draw(st.permutations(range(batch)))
    bounds = [0, *sorted(cuts), batch]
    return Plan(
        dp=data,
        tp=draw(st.integers(1, tp)),
        groups=tuple(tuple(order[a:b]) for a, b in itertools.pairwise(bounds)),
        tp_is_fast=draw(st.booleans()),
        knows_batch=draw(st.booleans()),
    )


@st.composite
def steps(draw: st.DrawFn, batch: int) -> list[Tensor]:
    """The tensors of one step: model input first, then what a model may make of it."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 1 << 16)))
    sequence, hidden = draw(st.integers(batch + 1, 9)), draw(st.integers(1, 8))

    def values(*shape: int) -> torch.Tensor:
        dtype = draw(st.sampled_from([torch.float32, torch.bfloat16]))
        return torch.randint(-20, 20, shape, generator=generator).to(dtype)

    def styled(tensor: Tensor) -> Tensor:
        return replace(
            tensor,
            style=draw(st.sampled_from(["replicated", "known", "inferred", "partial"])),
            dim=draw(st.integers(0, 1)) + (tensor.role == "batch"),
            way=draw(st.sampled_from(["shard", "zigzag", "sections"])),
        )

    tokens = torch.randint(1 << 20, (batch, sequence), generator=generator)
    table = styled(Tensor(id_of("table", Kind.OUTPUT), values(sequence, hidden), "shared"))
    constant = torch.zeros(batch, sequence, hidden)
    step = [
        Tensor(id_of("", Kind.INPUT), tokens),
        table if table.style != "partial" else replace(table, style="replicated"),
        styled(Tensor(id_of("table", Kind.GRAD_OUTPUT), values(batch, sequence, hidden), "sum")),
        Tensor(id_of("", Kind.LOSS), values(batch), "sum"),
        styled(Tensor(id_of("w", Kind.PARAM, "weight"), values(hidden, 6), "param")),
        styled(Tensor(id_of("empty", Kind.OUTPUT), values(batch, sequence, 0))),
        Tensor(id_of("mask", Kind.OUTPUT), constant),
        Tensor(id_of("mask", Kind.GRAD_OUTPUT), values(batch, sequence, hidden)),
    ]
    for number in range(draw(st.integers(1, 3))):
        id_ = id_of(f"layers.{number}", draw(st.sampled_from(ACTIVATIONS)))
        step.append(styled(Tensor(id_, values(batch, sequence, hidden))))
    for form, dims in (("sequence first", (0, 2)), ("flat", (0, 1))):
        other = styled(Tensor(id_of(form, Kind.OUTPUT), values(batch, sequence, hidden + batch)))
        step.append(replace(other, form=form, dim=draw(st.sampled_from(dims))))
    return step


@st.composite
def pairs(draw: st.DrawFn) -> tuple[list[Tensor], Plan, Plan]:
    batch = draw(st.integers(4, 6))
    reference = draw(plans(batch, tp=2) | st.just(one_rank(batch)))
    return draw(steps(batch)), reference, draw(plans(batch))


def one_rank(batch: int) -> Plan:
    return Plan(dp=1, tp=1, groups=(tuple(range(batch)),))


@given(pairs())
@settings(max_examples=60, deadline=None)
def test_every_layout_of_a_step_is_equal(pair: tuple[list[Tensor], Plan, Plan]) -> None:
    with compared(*pair) as outcome:
        assert outcome.aligned.candidate_batch.notes == ()
        assert {str(t.id): f for t in pair[0] if (f := outcome.fault(t.id))} == {}


@st.composite
def records(draw: st.DrawFn) -> tuple[list[Tensor], Plan, Tensor, tuple[int, int, int, int]]:
    """A candidate, one of its tensors, and where to find one record of it: rank, d, t, m."""
    tensors, _, plan = draw(pairs())
    tensor = draw(st.sampled_from(tensors[1:]))
    info, d, t = draw(st.sampled_from(list(plan.ranks())))
    m = 0 if tensor.role == "param" else draw(st.integers(0, plan.microbatches - 1))
    return tensors, plan, tensor, (info.rank, d, t, m)


Chosen = tuple[list[Tensor], Plan, Tensor, tuple[int, int, int, int]]


@given(records())
@settings(max_examples=60, deadline=None)
def test_a_dropped_piece_is_missed_where_it_was(chosen: Chosen) -> None:
    tensors, plan, tensor, (rank, d, t, m) = chosen
    everyone = tuple(range(len(tensors[0].values)))
    samples = plan.groups[d * plan.microbatches + m]
    local = tensor.local(samples, t, plan.tp)[0]
    copies = {"batch": 1, "sum": 1, "shared": len(plan.groups), "param": plan.dp}[tensor.role]
    if tensor.is_whole_on(plan):
        copies *= plan.tp
    # A shard whose layout is inferred, or a term, is missed even if other ranks hold a copy.
    vital = copies == 1 or (not tensor.is_whole_on(plan) and tensor.style != "known")
    assume(local.numel())

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
        expected = places.local(samples, t, plan.tp)[0]
        assert places.of(everyone)[missing].unique().equal(expected.unique())


@given(records())
@settings(max_examples=40, deadline=None)
def test_a_replica_with_another_value_is_named_by_its_rank(chosen: Chosen) -> None:
    tensors, plan, tensor, (rank, d, t, m) = chosen
    local = tensor.local(plan.groups[d * plan.microbatches + m], t, plan.tp)[0]
    of_tp = t > 0 and tensor.is_whole_on(plan)
    of_dp = d > 0 and tensor.role == "param" and tensor.style != "partial"
    assume(local.numel() and (of_tp or of_dp))

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
    assert rank in disagreement.piece.ranks
    assert disagreement.statistics.unequal == 1
    assert tensor.role == "sum" or disagreement.piece.ranks == (rank,)


@given(records())
@settings(max_examples=25, deadline=None)
def test_a_changed_tensor_is_unequal_and_no_other_is(chosen: Chosen) -> None:
    tensors, plan, tensor, _ = chosen
    assume(tensor.values.numel())
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
        (note,) = outcome.aligned.candidate_batch.notes
        assert "not rows of the reference's" in note
        faults = {t.id: fault for t in tensors if (fault := outcome.fault(t.id))}
        assert faults == {tensors[0].id: "unequal"}
