"""The traces that are mutated: small ones of which `ttrace check` says that they are equivalent.

made    one rank against two that split samples and parameters: every field of the format
real    recorded by the tracer itself, of a model of two layers
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ttrace.core.ids import TensorId
from ttrace.core.layout import Layout
from ttrace.core.record import (
    Code,
    Excerpt,
    Hyperparameter,
    ModuleInfo,
    Owner,
    RankInfo,
    Record,
    Summary,
)
from ttrace.trace.dtypes import dtype_name
from ttrace.trace.writer import TraceWriter

ROLES = ("reference", "candidate", "perturbed")
_SAMPLES, _WIDTH = 4, 6
_RANKS = 2


@dataclass(frozen=True, slots=True)
class Base:
    """Three traces that belong together."""

    name: str
    folder: Path

    def trace(self, role: str) -> Path:
        return self.folder / role


class _Rank:
    """Writes one rank of a made trace."""

    def __init__(self, folder: Path, rank: int, ranks: int, noise_seed: int | None) -> None:
        self._rank = rank
        self._sequence = 0
        self._written: dict[str, Record] = {}
        modules = [
            ModuleInfo(path=p, class_name="Linear", source="model.py:3") for p in ("", *"ab")
        ]
        info = RankInfo(
            rank=rank,
            world_size=ranks,
            axes={"dp": (rank, ranks)} if ranks > 1 else {},
            batch=(rank, ranks),
            noise_seed=noise_seed,
            modules=tuple(modules),
            versions={"torch": "2"},
            facts={"torch seed": "0"},
        )
        self._writer = TraceWriter(folder, info)

    def put(
        self, name: str, tensor: torch.Tensor, layout: Layout | None = None, **more: Any
    ) -> None:
        self._sequence += 1
        record = Record(
            id=TensorId.parse(f"step0/{name}"),
            rank=self._rank,
            sequence=self._sequence,
            dtype=dtype_name(tensor.dtype),
            shape=tuple(tensor.shape),
            layout=layout,
            **more,
        )
        self._written[name] = self._writer.write(record, tensor)

    def again(self, name: str, same_as: str, *, is_gradient: bool = False) -> None:
        """The same tensor under another name: with its bytes, or, of a gradient, without."""
        self._sequence += 1
        known = self._written[same_as]
        where = None if is_gradient else known.location
        self._writer.note(
            Record(
                id=TensorId.parse(f"step0/{name}"),
                rank=self._rank,
                sequence=self._sequence,
                dtype=known.dtype,
                shape=known.shape,
                microbatch=known.microbatch,
                layout=None if is_gradient else known.layout,
                same_as=known.id,
                location=where,
            )
        )

    def close(self) -> None:
        lines = ("def forward(self, x):", "    return self.b(self.a(x))")
        excerpt = Excerpt(file="model.py", line=4, function="forward", first=3, lines=lines)
        learning = Hyperparameter(owner=Owner.PARAMETER, name="lr", values=(0.1,), step=0)
        self._writer.end_step(0)
        self._writer.close(
            Summary(
                steps=1,
                hooks_expected=2,
                hooks_fired=2,
                hyperparameters=(learning,),
                asked=1,
                optimizers=("SGD",),
                code=Code(excerpts=(excerpt,), forwards={"": 0}, calls={"a": (0,)}),
            )
        )


def make(folder: Path) -> Base:
    """The made traces."""
    for role, ranks, seed in (
        ("reference", 1, None),
        ("candidate", _RANKS, None),
        ("perturbed", 1, 1),
    ):
        values = _values(0.0 if seed is None else 1e-6)
        for rank in range(ranks):
            _write(_Rank(folder / role, rank, ranks, seed), values, rank, ranks)
    return Base("made", folder)


def record(folder: Path) -> Base:
    """The real traces."""
    from tests.support import tiny_train

    for role, seed in zip(ROLES, (None, None, 1), strict=True):
        tiny_train.record(folder / role, "--light", noise_seed=seed)
    return Base("real", folder)


def _values(noise: float) -> Mapping[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    exact = {
        ":input.0": draw(_SAMPLES, _WIDTH),
        "a:param.weight": draw(_WIDTH, _WIDTH),
        "a:output.0": draw(_SAMPLES, _WIDTH),
        "b:output.0": draw(_SAMPLES, _WIDTH).bfloat16(),
        "b:grad_input.0": draw(_SAMPLES, _WIDTH),
        "a:main_grad.weight": draw(_WIDTH, _WIDTH),
        "a:param_after.weight": draw(_WIDTH, _WIDTH),
    }
    moved = {name: value * (1 + noise * draw(*value.shape)) for name, value in exact.items()}
    inputs = {name: exact[name] for name in (":input.0", "a:param.weight")}
    return {name: value.to(exact[name].dtype) for name, value in (moved | inputs).items()}


def _write(to: _Rank, values: Mapping[str, torch.Tensor], rank: int, ranks: int) -> None:
    samples = slice(rank * _SAMPLES // ranks, (rank + 1) * _SAMPLES // ranks)
    whole = Layout.full((_WIDTH, _WIDTH))
    shard = whole.shard(0, rank, ranks)
    rows = slice(rank * _WIDTH // ranks, (rank + 1) * _WIDTH // ranks)
    to.put(":input.0", values[":input.0"][samples], batch_dim=0)
    to.put("a:param.weight", values["a:param.weight"][rows], shard)
    to.again("a:input.0", ":input.0")
    to.put("a:output.0", values["a:output.0"][samples])
    to.again("b:input.0", "a:output.0")
    to.put("b:output.0", values["b:output.0"][samples])
    to.put("b:output.0", values["b:output.0"][samples], recompute=True)
    to.again(":output.0", "b:output.0")
    to.put(":loss", values["b:output.0"].float().mean())
    to.put("b:grad_input.0", values["b:grad_input.0"][samples] * ranks)
    to.again("a:grad_output.0", "b:grad_input.0", is_gradient=True)
    to.put("a:main_grad.weight", values["a:main_grad.weight"], whole)
    to.put("a:param_after.weight", values["a:param_after.weight"][rows], shard)
    to.put("b:buffer.count", torch.tensor(1))
    to.close()
