"""A tensor that is met again: under which record, and whether anything can have changed it."""

from __future__ import annotations

from ttrace.core.ids import TensorId
from ttrace.core.layout import Layout
from ttrace.core.record import Record


def met_again(met: Record, said: Layout | None, known: Record) -> Record | None:
    """The record of a tensor that is met again, under the bytes that it has already.

    None where it is another term of a sum than before.
    """
    if not _is_same_sum(known, met.id, said):
        return None
    return Record(  # `replace` takes five times as long
        id=met.id,
        rank=known.rank,
        sequence=met.sequence,
        dtype=known.dtype,
        shape=known.shape,
        microbatch=met.microbatch,
        recompute=met.recompute,
        layout=known.layout,
        batch_dim=known.batch_dim,
        origin=known.origin,
        same_as=known.same_as or known.id,
        location=known.location,
        payload=known.payload,
    )


def is_of_layers(id_: TensorId) -> bool:
    """Whether only layers write into it; optimizers change parameters unseen."""
    return id_.kind.is_activation or id_.kind.is_gradient_of_activation


def _is_same_sum(record: Record, id_: TensorId, layout: Layout | None) -> bool:
    """Whether a tensor that is met again is a term of the same sum over ranks as it was before.

    A gradient that should be summed by now is another tensor, even if nothing changed it. An
    activation that is met again without a layout keeps the layout that its first record has.
    """
    known = () if record.layout is None else record.layout.partial
    if layout is None:
        return id_.kind.is_activation or not known
    return layout.partial == known
