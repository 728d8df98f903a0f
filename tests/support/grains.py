"""Pairs of tensors in several precisions, as a check has them when it looks for lost bits."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from ttrace.analysis.compare import Asked, Measured, Precisions, precisions
from ttrace.analysis.compare.grain import between
from ttrace.core.ids import TensorId
from ttrace.core.layout import Layout
from ttrace.core.logical import LogicalTensor, Pair, Piece
from ttrace.core.record import Record
from ttrace.core.statistics import Statistics
from ttrace.measure.accumulator import Accumulator
from ttrace.measure.rounding import Witnesses
from ttrace.trace.dtypes import dtype_name

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32


def fine(count: int = 500, seed: int = 0) -> Tensor:
    return torch.randn(count, generator=torch.Generator().manual_seed(seed))


def low(dtype: torch.dtype = BF16, count: int = 500) -> Tensor:
    """In a lower precision, but stored in float32."""
    return fine(count).to(dtype).float()


def measure(reference: Tensor, candidate: Tensor) -> Statistics:
    whole = Accumulator(shape=reference.shape)
    whole.update(reference, candidate)
    return whole.result()


@dataclass
class Run:
    """Pairs as a check has them."""

    asked: Asked = field(default_factory=Asked)
    isolated: bool = False
    pairs: dict[TensorId, Pair] = field(default_factory=dict)
    measured: dict[TensorId, Measured] = field(default_factory=dict)
    noise: dict[TensorId, Statistics] = field(default_factory=dict)

    def add(
        self, text: str, reference: Tensor, candidate: Tensor, *, terms: tuple[int, int] = (1, 1)
    ) -> Run:
        """`terms`: of how many records each side is the sum."""
        id_ = TensorId.parse(f"step0/{text}")
        self.pairs[id_] = (
            logical(id_, reference, terms[0]),
            logical(id_, candidate, terms[1]),
        )
        found = measure(reference, candidate)
        precision, count = between(found), 0
        if precision is not None:
            witnesses = Witnesses(precision.coarser.mantissa_bits)
            pair = (candidate, reference) if precision.is_lower else (reference, candidate)
            witnesses.add(*pair)
            count = witnesses.count
        self.measured[id_] = Measured(statistics=found, witnesses=count)
        return self

    def perturbed(self, text: str, reference: Tensor, again: Tensor) -> Run:
        self.noise[TensorId.parse(f"step0/{text}")] = measure(reference, again)
        return self

    @property
    def found(self) -> Precisions:
        return precisions(
            self.pairs, self.measured, [self.noise], self.asked, isolated=self.isolated
        )

    @property
    def wrong(self) -> dict[str, tuple[str, str]]:
        """By the id, the dtypes of the candidate and of the reference."""
        return {
            str(id_).removeprefix("step0/"): (found.candidate.name, found.reference.name)
            for id_, found in self.found.wrong.items()
        }

    @property
    def allowed(self) -> set[str]:
        return {str(id_).removeprefix("step0/") for id_ in self.found.allowed}


def logical(id_: TensorId, values: Tensor, terms: int) -> LogicalTensor:
    shape = tuple(values.shape)
    layout = Layout.full(shape)
    records = tuple(
        Record(id=id_, rank=rank, sequence=1, dtype=dtype_name(values.dtype), shape=shape)
        for rank in range(terms)
    )
    return LogicalTensor(shape=shape, pieces=(Piece(layout=layout, records=records),))
