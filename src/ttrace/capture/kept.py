"""A quantised tensor that a hook has met: its record, and the bytes of its codes and scales."""

from __future__ import annotations

import torch

from ttrace.adapters.base import BoundarySpec
from ttrace.core.record import Record
from ttrace.trace.quantised import Quantised


def as_kept(
    record: Record, values: torch.Tensor, kept: Quantised | None, boundary: BoundarySpec | None
) -> tuple[Record, torch.Tensor]:
    """Its values where it is not kept so, or the record groups its elements otherwise."""
    if kept is None:
        return record, values
    if boundary is not None and boundary.dims:
        kept = kept.permuted(boundary.dims)
    if kept.codes.shape != record.shape:
        return record, values
    return record.stored_as(kept.described()), kept.packed()
