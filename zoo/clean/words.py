"""The words of a case: how numbers are held, how work is split, who updates the parameters."""

from __future__ import annotations

from typing import Literal

Dtype = Literal["fp32", "bf16", "bf16-autocast", "fp16-scaler", "fp64"]

LayoutName = Literal[
    "one",  # the reference
    "ddp2",
    "ddp4",
    "fsdp2",
    "accumulate2",
    "accumulate4",
    "ddp2-accumulate2",
    "tp2",  # DTensor, with sequence parallelism
    "tp2-by-hand",  # plain tensors and autograd functions, as Megatron-LM does it
    "cp2",  # keys and values gathered
]

OptimizerName = Literal["sgd", "adam", "adamw", "adamw-clip", "adafactor", "muon", "rmsprop"]
