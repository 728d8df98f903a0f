"""Verifies the bytes of every tensor of two traces, also of those that could not be measured."""

from __future__ import annotations

from ttrace.analysis.align import Aligned
from ttrace.analysis.sources import Source
from ttrace.trace.blocks import BlockReader


def verify(aligned: Aligned, reference: Source, candidate: Source) -> None:
    """Raise CorruptTrace where bytes are not those that were written; each is read once."""
    for alignment in aligned.tensors:
        for tensor, source in ((alignment.reference, reference), (alignment.candidate, candidate)):
            if tensor is not None:
                BlockReader(source.spans).finish(tensor)
