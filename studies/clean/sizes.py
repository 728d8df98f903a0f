"""From a number of rows to a batch that an architecture can take."""

from __future__ import annotations

from zoo.clean.architecture import Architecture
from zoo.clean.case import Case
from zoo.clean.words import Dtype

SEEDS = (1, 2, 3)
PRECISIONS: tuple[Dtype, ...] = ("fp32", "bf16")
_SAMPLES = 8  # at least: 2 ranks x 2 microbatches x 2
_SMALLEST_IMAGE = 64  # pixels: what is halved and has patches of 4 needs 8 along a side


def sized(architecture: Architecture, rows: int, *, dtype: Dtype, seed: int) -> Case:
    """As few samples as may be, until positions are as many as the architecture is given."""
    positions = min(architecture.longest, rows // _SAMPLES)
    if architecture.is_image:
        positions = max(_SMALLEST_IMAGE, 4 ** ((positions.bit_length() - 1) // 2))
    return Case(
        architecture=architecture.name,
        batch=rows // positions,
        positions=positions,
        dtype=dtype,
        seed=seed,
    )
