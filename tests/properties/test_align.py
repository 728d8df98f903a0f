"""One logical step, written as two traces in different layouts, must come out equal.

All values are small integers, so that sums over ranks and microbatches are exact in any order. A
sequence is longer than a batch has samples: a position table with as many rows as a microbatch has
samples cannot be told from an activation.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

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
    values: torch.Tensor = field(repr=False)
    role: str = "batch"  # batch | shared | sum (over samples) | param
    style: str = (
        "replicated"  # what tensor parallelism does: replicated | known | inferred | partial
    )
    dim: int = 0
    way: str = "shard"
    sequence_first: bool = False

    def of(self, samples: tuple[int, ...]) -> torch.Tensor:
        if self.role in ("shared", "param"):
            return self.values
        held = self.values[list(samples)]
        if self.role == "sum":
            return held.sum(0).to(self.values.dtype)
        return held.transpose(0, 1) if self.sequence_first else held

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
    flipped = Tensor(id_of("flipped", Kind.OUTPUT), values(batch, sequence, hidden))
    style = draw(st.sampled_from(["replicated", "known"]))
    step.append(replace(flipped, sequence_first=True, style=style, dim=draw(st.integers(0, 2))))
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


@given(pairs(), st.data())
@settings(max_examples=40, deadline=None)
def test_a_dropped_piece_is_missed_where_it_was(
    pair: tuple[list[Tensor], Plan, Plan], data: st.DataObject
) -> None:
    tensors, _, plan = pair
    batch = len(tensors[0].values)
    tensor = data.draw(st.sampled_from(tensors[1:]))
    (info, d, t), m = (
        data.draw(st.sampled_from(list(plan.ranks()))),
        data.draw(st.integers(0, plan.microbatches - 1)),
    )
    samples = plan.groups[d * plan.microbatches + m]
    local, _ = tensor.local(samples, t, plan.tp)
    copies = plan.dp if tensor.role == "param" else len(plan.groups)
    held_once = not (tensor.is_whole_on(plan) and plan.tp > 1) and (
        tensor.role in ("batch", "sum") or copies == 1
    )
    assume(tensor.role != "param" or m == 0)
    assume(local.numel() and (held_once or tensor.style != "inferred"))

    def drop(record: Record, value: torch.Tensor) -> torch.Tensor | None:
        dropped = (tensor.id, info.rank, m)
        return None if (record.id, record.rank, record.microbatch) == dropped else value

    with compared(tensors, one_rank(batch), plan, drop) as outcome:
        faults = {other.id: fault for other in tensors if (fault := outcome.fault(other.id))}
        found = outcome.of(tensor.id).candidate
        problem = outcome.of(tensor.id).candidate_problem
        if not held_once:
            assert faults == {}
        else:
            assert list(faults) == [tensor.id]
            if not problem and found is not None:
                missing = torch.zeros(found.shape, dtype=torch.bool)
                for box in found.gaps:
                    missing[tuple(map(slice, box.start, box.stop))] = True
                places = replace(tensor, values=torch.arange(tensor.values.numel()))
                places = replace(places, values=places.values.reshape(tensor.values.shape))
                expected = places.local(samples, t, plan.tp)[0].unique()
                order = places.of(tuple(range(batch)))
                assert order[missing].unique().equal(expected)
