"""Small training steps as plain tensors, and random ways to spread them over ranks.

All values are small integers, so that sums over ranks and microbatches are exact in any order. A
sequence is longer than a batch has samples: a position table with as many rows as a microbatch has
samples cannot be told from an activation, nor can flat tokens with as many columns.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from hypothesis import strategies as st

from ttrace.core.ids import Kind, TensorId
from ttrace.core.layout import Layout
from ttrace.core.record import RankInfo, Record, Summary
from ttrace.trace.dtypes import dtype_name
from ttrace.trace.reader import Trace
from ttrace.trace.writer import TraceWriter

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
    recomputed: tuple[tuple[TensorId, int], ...] = ()  # id, microbatch

    @property
    def microbatches(self) -> int:
        return len(self.groups) // self.dp

    def samples(self, d: int, m: int) -> tuple[int, ...]:
        return self.groups[d * self.microbatches + m]

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
    role: str = "batch"  # batch | shared | sum or mean (over samples) | param
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
        if self.role in ("sum", "mean"):
            return (held.sum(0) if self.role == "sum" else held.mean(0)).to(self.values.dtype)
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
            [run.start + i for run in runs if run.start is not None for i in range(run.length)]
            for runs in layout.runs
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

    @property
    def repeats(self) -> bool:
        """Whether every data-parallel rank holds the same."""
        return self.role == "param" and self.style != "partial"

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
                local, layout = tensor.local(plan.samples(d, m), t, plan.tp)
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
                if (tensor.id, m) in plan.recomputed:
                    writer.write(replace(record, recompute=True), local)
        writer.close(SUMMARY)
    return Trace.open(root)


def id_of(module: str, kind: Kind, slot: str = "0") -> TensorId:
    return TensorId(step=0, module=module, kind=kind, slot=slot)


@st.composite
def plans(draw: st.DrawFn, batch: int, *, tp_from: int = 1, tp_to: int = 3) -> Plan:
    dp, microbatches = draw(st.integers(1, 2)), draw(st.integers(1, 2))
    inside = st.integers(1, batch - 1)
    parts = dp * microbatches
    cuts = draw(st.lists(inside, min_size=parts - 1, max_size=parts - 1, unique=True))
    order = draw(st.permutations(range(batch))) if parts > 1 else range(batch)
    bounds = [0, *sorted(cuts), batch]
    return Plan(
        dp=dp,
        tp=draw(st.integers(tp_from, tp_to)),
        groups=tuple(tuple(order[a:b]) for a, b in itertools.pairwise(bounds)),
        tp_is_fast=draw(st.booleans()),
        knows_batch=draw(st.booleans()),
    )


@st.composite
def steps(draw: st.DrawFn, batch: int) -> list[Tensor]:
    """The tensors of one step: model input first, then what a model may make of it."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 1 << 16)))
    # Columns as many as samples could be taken for them when a shard of a table is missing.
    sequence, hidden = (
        draw(st.integers(batch + 1, 9)),
        draw(st.integers(1, 8).filter(lambda n: n % batch)),
    )

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
        # Positive, as losses are: terms that cancel could be lost without a difference.
        Tensor(id_of("", Kind.LOSS), values(batch).abs() + 1, "sum"),
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
    reference = draw(plans(batch, tp_to=2) | st.just(one_rank(batch)))
    return draw(steps(batch)), reference, draw(plans(batch))


def one_rank(batch: int) -> Plan:
    return Plan(dp=1, tp=1, groups=(tuple(range(batch)),))


class Place(NamedTuple):
    """Where a record of a candidate is."""

    rank: int
    d: int
    t: int
    m: int


Chosen = tuple[list[Tensor], Plan, Tensor, Place]


@st.composite
def records(draw: st.DrawFn, *, replicas: bool = False) -> Chosen:
    """A candidate and one record of it that is not empty; on request, one that repeats another."""
    batch = draw(st.integers(4, 6))
    tensors, plan = draw(steps(batch)), draw(plans(batch, tp_from=1 + replicas))
    found = [
        (tensor, Place(info.rank, d, t, m))
        for tensor in tensors[1:]
        for info, d, t in plan.ranks()
        for m in range(plan.microbatches if tensor.role != "param" else 1)
        if tensor.local(plan.samples(d, m), t, plan.tp)[0].numel()
        and (not replicas or (t > 0 and tensor.is_whole_on(plan)) or (d > 0 and tensor.repeats))
    ]
    return tensors, plan, *draw(st.sampled_from(found))
