"""What a record of a trace must be, beyond the types and ranges of its fields.

Enters: a record as the journal has it, and what came before it. Leaves: nothing; Refused says which
of its fields do not fit together. What passed here is trusted by all stages.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Container

from ttrace.core.ids import TensorId
from ttrace.core.layout import Layout, Runs
from ttrace.core.limits import ELEMENTS
from ttrace.core.record import RankInfo, Record
from ttrace.core.refused import InWords, Refused
from ttrace.trace.dtypes import is_readable
from ttrace.trace.payloads import payload_of


def require_sound(record: Record, info: RankInfo, earlier: Container[TensorId]) -> None:
    """Refuse a record of this rank that contradicts itself, or those before it."""
    if not is_readable(record.dtype):
        raise Refused(record.dtype, "a dtype of this torch whose values are numbers", "dtype")
    _require_size(record.shape, "shape")
    if record.origin is not None and record.origin >= info.world_size:
        raise Refused(record.origin, f"one of {info.world_size} ranks", "origin")
    if record.layout is not None:
        _require_layout(record.layout, record.shape)
    logical = record.shape if record.layout is None else record.layout.shape
    if record.batch_dim is not None and record.batch_dim >= max(1, len(logical)):
        raise Refused(record.batch_dim, f"one of {len(logical)} dims", "batch_dim")
    if record.location is None:
        if record.same_as is None or not record.id.kind.is_gradient_of_activation:
            place = "the place of its bytes; only a gradient may be stored with another"
            raise Refused(InWords("nothing"), place, "at")
        return
    if record.same_as is not None and record.same_as not in earlier:
        raise Refused(str(record.same_as), "the id of an earlier record", "same_as")
    try:
        expected = payload_of(record).size_bytes(record)
    except (ValueError, LookupError, TypeError) as error:  # of a payload that trusts its numbers
        raise Refused(InWords(str(error)), "parameters of this payload", "payload") from None
    if record.location.size_bytes != expected:
        raise Refused(
            record.location.size_bytes,
            f"{expected} bytes for {record.dtype} {list(record.shape)}",
            "at.size_bytes",
        )


def _require_layout(layout: Layout, local: tuple[int, ...]) -> None:
    _require_size(layout.shape, "layout.shape")
    if layout.local_shape != local:
        raise Refused(
            InWords(f"{layout}, a part of shape {list(layout.local_shape)}"),
            f"one of {list(local)}, as the tensor has",
            "layout",
        )
    for dim, runs in enumerate(layout.runs):
        if len(runs) > 1 and _meets_itself(runs):
            raise Refused(
                InWords("indices that come twice"), "each index once", f"layout.runs[{dim}]"
            )


def _meets_itself(runs: Runs) -> bool:
    ordered = sorted((run.start, run.start + run.length) for run in runs if run.start is not None)
    return any(stop > start for (_, stop), (start, _) in itertools.pairwise(ordered))


def _require_size(shape: tuple[int, ...], where: str) -> None:
    if math.prod(max(1, size) for size in shape) > ELEMENTS:
        raise Refused(list(shape), f"at most {ELEMENTS:,} elements", where)
