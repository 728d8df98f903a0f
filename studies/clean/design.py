"""The grid of correct runs: which cases, and why each is there.

    first-contact   programs that once raised false alarms
    cross           every architecture in every precision, in two of its layouts for each seed
    rows, width, depth   one size is swept, the others stay
    layouts         every layout of the language models, larger than in `cross`
    steps           three steps in a row: what a step leaves behind is in the next
    large, devices  on a GPU alone: sizes that a CPU is too slow for, and a reference on the CPU

Enters: a device. Leaves: cases, each once. Not a full product: that would be more than a million.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import get_args

from studies.clean.first_contact import first_contact
from studies.clean.large import devices, large
from studies.clean.sizes import PRECISIONS, SEEDS, sized
from zoo.clean.architecture import Architecture
from zoo.clean.case import Case
from zoo.clean.registry import architectures
from zoo.clean.words import Dtype, LayoutName, OptimizerName

DTYPES: tuple[Dtype, ...] = ("fp32", "bf16", "bf16-autocast", "fp16-scaler")
ROWS = (64, 512, 4096, 16_384, 65_536)
WIDTHS = (32, 128, 512, 2048)
DEPTHS = (1, 2, 4, 8)
_CROSS_ROWS, _WIDTH_ROWS, _DEPTH_ROWS, _LAYOUT_ROWS = 512, 256, 512, 2048
_STEPS = 3

# Architectures of a sweep, each with the largest size that takes seconds rather than minutes.
SWEPT_ROWS = {
    "layernorm": 65_536,
    "layernorm-embedding": 65_536,
    "mlp": 65_536,
    "sound": 65_536,
    "resnet-frozen": 65_536,
    "gpt2": 16_384,
    "llama": 16_384,
    "unet": 16_384,
    "graphs": 16_384,
}
SWEPT_WIDTHS = {"layernorm": 2048, "mlp": 2048, "gpt2": 512, "llama": 512, "lstm": 512}
STEPPED = ("gpt2", "llama", "mlp", "resnet-frozen", "lstm", "moe")
_STEPPED_BY: tuple[OptimizerName, ...] = ("adamw", "sgd", "adamw-clip")
SWEPT_DEPTHS = ("gpt2", "llama", "mlp", "resnet-frozen", "lstm", "mamba")

_ALL_OPTIMIZERS: tuple[OptimizerName, ...] = get_args(OptimizerName)
# Element by element: the others are defined on whole matrices, or need a norm over all ranks.
_ELEMENTWISE: tuple[OptimizerName, ...] = ("sgd", "adam", "adamw", "rmsprop")
_CUTS_TENSORS: tuple[LayoutName, ...] = ("tp2", "tp2-by-hand")


def design(device: str = "cpu") -> list[Case]:
    """Cases whose architecture is there, each once; those that need a GPU only on one."""
    cases: list[Case] = [
        *first_contact(),
        *cross(),
        *swept_rows(),
        *swept_widths(),
        *swept_depths(),
        *all_layouts(),
        *several_steps(),
    ]
    if device == "cpu":
        cases = [_with_mkldnn(case) for case in cases]
    else:
        cases += [*large(), *devices()]
        cases = [_on(case, device) for case in cases]
    known = architectures()
    return list({case.key: case for case in cases if case.architecture in known}.values())


def _with_mkldnn(case: Case) -> Case:
    """As most people have it for every second seed; first contacts say it themselves."""
    if case.group == "first-contact" or case.dtype != "fp32":
        return case
    return replace(case, mkldnn=case.seed % 2 == 0)


def _on(case: Case, device: str) -> Case:
    reference = "cpu" if case.group == "devices" else device
    return replace(case, device=device, reference_device=reference, mkldnn=False)


def cross() -> Iterator[Case]:
    for number, architecture in enumerate(architectures().values()):
        for (row, dtype), seed in product(enumerate(DTYPES), SEEDS):
            layouts = _two(architecture.layouts, start=2 * seed + row)
            optimizer = _turn(_usable(layouts), number + row + seed)
            for layout in layouts:
                yield replace(
                    sized(architecture, _CROSS_ROWS, dtype=dtype, seed=seed),
                    layout=layout,
                    optimizer=optimizer,
                    group="cross",
                )


def _two(layouts: Sequence[LayoutName], *, start: int) -> list[LayoutName]:
    return [layouts[(start + offset) % len(layouts)] for offset in (0, 1)]


def _usable(layouts: Iterable[LayoutName]) -> Sequence[OptimizerName]:
    """torch's Adafactor does not run on what FSDP2 makes of parameters."""
    if set(layouts) & set(_CUTS_TENSORS):
        return _ELEMENTWISE
    if "fsdp2" in layouts:
        return [optimizer for optimizer in _ALL_OPTIMIZERS if optimizer != "adafactor"]
    return _ALL_OPTIMIZERS


def _turn(optimizers: Sequence[OptimizerName], number: int) -> OptimizerName:
    return optimizers[number % len(optimizers)]


def swept_rows() -> Iterator[Case]:
    for (name, most), rows in product(SWEPT_ROWS.items(), ROWS):
        architecture = architectures()[name]
        if rows <= most and not (architecture.is_image and rows < ROWS[1]):
            for case in _repeated(architecture, rows):
                yield replace(case, depth=1, group="rows")


def swept_widths() -> Iterator[Case]:
    for (name, most), width in product(SWEPT_WIDTHS.items(), WIDTHS):
        if width <= most:
            for case in _repeated(architectures()[name], _WIDTH_ROWS):
                yield replace(case, width=width, depth=1, group="width")


def swept_depths() -> Iterator[Case]:
    for name, depth in product(SWEPT_DEPTHS, DEPTHS):
        for case in _repeated(architectures()[name], _DEPTH_ROWS):
            yield replace(case, depth=depth, group="depth")


def all_layouts() -> Iterator[Case]:
    for name in ("gpt2", "llama"):
        architecture = architectures()[name]
        for case in _repeated(architecture, _LAYOUT_ROWS):
            for layout in architecture.layouts:
                yield replace(case, layout=layout, optimizer="adam", group="layouts")


def several_steps() -> Iterator[Case]:
    for name, optimizer in product(STEPPED, _STEPPED_BY):
        for case in _repeated(architectures()[name], _CROSS_ROWS):
            layout: LayoutName = "fsdp2" if case.seed % 2 else "ddp2"
            yield replace(
                case, layout=layout, optimizer=optimizer, steps=_STEPS, depth=1, group="steps"
            )


def _repeated(architecture: Architecture, rows: int) -> Iterator[Case]:
    for dtype, seed in product(PRECISIONS, SEEDS):
        yield sized(architecture, rows, dtype=dtype, seed=seed)
