"""A case: a correct training step (or several), and the layout in which the candidate does it.

    Case(architecture="llama", batch=8, positions=64, layout="fsdp2", dtype="bf16", seed=2)

Enters: nothing but plain values, so that a case travels to other processes. Leaves: its key, and
the case that is its reference. The reference of two cases is equal where they can share it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import cast, get_args

import torch

from zoo.clean.words import Dtype, LayoutName, OptimizerName

# What parameters are held in, and what autocast computes in.
PARAMETERS: dict[Dtype, torch.dtype] = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "bf16-autocast": torch.float32,
    "fp16-scaler": torch.float32,
    "fp64": torch.float64,
}
AUTOCAST: dict[Dtype, torch.dtype] = {
    "bf16-autocast": torch.bfloat16,
    "fp16-scaler": torch.float16,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Training steps on one batch; `group` says why it is in the grid, not what it does."""

    architecture: str
    batch: int  # samples of the global batch
    positions: int  # of a sample: tokens, pixels, frames, nodes
    width: int = 32
    depth: int = 2
    dtype: Dtype = "fp32"
    layout: LayoutName = "ddp2"
    optimizer: OptimizerName = "adamw"
    seed: int = 1
    steps: int = 1
    mkldnn: bool = False
    device: str = "cpu"
    reference_device: str = "cpu"
    group: str = ""

    def __post_init__(self) -> None:
        for value, words in ((self.dtype, Dtype), (self.layout, LayoutName)):
            if value not in get_args(words):
                raise ValueError(f"{value!r} is none of {', '.join(get_args(words))}")
        if self.mkldnn and self.dtype not in ("fp32", "fp64"):
            raise ValueError(f"mkldnn is for fp32 alone, found {self.dtype}: it may use AMX")

    @property
    def rows(self) -> int:
        return self.batch * self.positions

    @property
    def key(self) -> str:
        """Unlike that of any other case, and readable."""
        parts = [
            *(self.group, self.architecture, self.dtype, self.layout, self.optimizer),
            f"{self.batch}x{self.positions}",
            *(f"w{self.width}", f"d{self.depth}", f"s{self.seed}"),
        ]
        if self.steps > 1:
            parts.append(f"{self.steps}-steps")
        if self.mkldnn:
            parts.append("mkldnn")
        if self.device != "cpu":
            parts.append(self.device)
            if self.reference_device != self.device:
                parts.append(f"from-{self.reference_device}")
        return "/".join(parts)

    @classmethod
    def from_key(cls, key: str) -> Case:
        """The inverse of `key`."""
        group, architecture, dtype, layout, optimizer, batch, width, depth, seed, *rest = key.split(
            "/"
        )
        samples, _, positions = batch.partition("x")
        steps = [word for word in rest if word.endswith("-steps")]
        devices = [word for word in rest if word not in ("mkldnn", *steps)]
        device = devices[0] if devices else "cpu"
        return cls(
            architecture=architecture,
            batch=int(samples),
            positions=int(positions),
            width=int(width[1:]),
            depth=int(depth[1:]),
            dtype=cast(Dtype, dtype),
            layout=cast(LayoutName, layout),
            optimizer=cast(OptimizerName, optimizer),
            seed=int(seed[1:]),
            steps=int(steps[0].removesuffix("-steps")) if steps else 1,
            mkldnn="mkldnn" in rest,
            device=device,
            reference_device=devices[1].removeprefix("from-") if devices[1:] else device,
            group=group,
        )

    @property
    def reference(self) -> Case:
        """The same step in one process."""
        return replace(self, layout="one", device=self.reference_device, group="")
