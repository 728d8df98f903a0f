"""Cases for a GPU: rows to 262,144 and widths to 8,192, and a reference on the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from studies.clean.sizes import PRECISIONS, SEEDS, sized
from zoo.clean.case import Case
from zoo.clean.registry import architectures
from zoo.clean.words import LayoutName

_LAYOUTS: tuple[LayoutName, ...] = ("ddp2", "fsdp2", "accumulate2")
# (architecture, rows, width); a trace of six runs must fit a disk of 64 GB
_SIZES = (
    *(("layernorm", rows, 32) for rows in (65_536, 262_144)),
    *(("mlp", rows, 128) for rows in (65_536, 262_144)),
    *(("gpt2", rows, 64) for rows in (16_384, 65_536)),
    *(("llama", rows, 64) for rows in (16_384, 65_536)),
    *(("layernorm", 4096, width) for width in (1024, 4096, 8192)),
    *(("mlp", 4096, width) for width in (1024, 4096, 8192)),
    *(("gpt2", 2048, width) for width in (512, 1024, 2048)),
    *(("llama", 2048, width) for width in (512, 1024, 2048)),
)


def large() -> Iterator[Case]:
    for (name, rows, width), dtype, seed in product(_SIZES, PRECISIONS, SEEDS[:2]):
        case = sized(architectures()[name], rows, dtype=dtype, seed=seed)
        for layout in _LAYOUTS:
            # without states: they would be half of the trace
            yield replace(case, width=width, depth=1, layout=layout, optimizer="sgd", group="large")


def devices() -> Iterator[Case]:
    """No convolutions: on a GPU they round to TF32, which is another training."""
    for name, dtype, seed in product(("gpt2", "llama", "mlp", "lstm"), PRECISIONS, SEEDS):
        case = sized(architectures()[name], 4096, dtype=dtype, seed=seed)
        for layout in ("ddp2", "accumulate2"):
            yield replace(case, width=64, layout=layout, group="devices")
