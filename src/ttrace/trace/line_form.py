"""The lines of records in a journal, most of which are the same in every step but for few numbers.

Enters: a record of one step. Leaves: the text of its line, in this step or in any.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from ttrace.core.layout import Layout
from ttrace.core.record import Location, PayloadRef, Record
from ttrace.trace.journal import encoded

_STEP = "step"
_KEPT = 4096  # chosen: of a step of a large model there are about a hundred


def line_of(record: Record) -> str:
    """The text of its line: what `Record.to_json` says, for which most texts are known already."""
    at, same_as = record.location, record.same_as
    return "".join(
        (
            f'{{"id":{encoded(str(record.id))},"seq":{record.sequence},',
            _facts(
                record.dtype,
                record.shape,
                record.microbatch,
                record.recompute,
                record.layout,
                record.batch_dim,
                record.origin,
            ),
            "" if same_as is None else f',"same_as":{encoded(str(same_as))}',
            "" if at is None else f',"at":["{at.segment}",{at.offset},{at.size_bytes},"{at.xxh3}"]',
            "" if record.payload is None else _payload(record.payload),
            "}",
        )
    )


@functools.lru_cache(_KEPT)
def _facts(
    dtype: str,
    shape: Sequence[int],
    microbatch: int,
    recompute: bool,  # noqa: FBT001  (a cache of positions is quicker)
    layout: Layout | None,
    batch_dim: int | None,
    origin: int | None,
) -> str:
    facts: dict[str, Any] = {"dtype": dtype, "shape": list(shape), "mb": microbatch}
    if recompute:
        facts["recompute"] = True
    if layout is not None:
        facts["layout"] = layout.to_json()
    if batch_dim is not None:
        facts["batch_dim"] = batch_dim
    if origin is not None:
        facts["origin"] = origin
    return encoded(facts)[1:-1]


@functools.lru_cache(_KEPT)
def _payload(payload: PayloadRef) -> str:
    return f',"payload":{encoded([payload.name, dict(payload.parameters)])}'


class LineForm:
    """The line of a record, with gaps for its step, its place in the step and that of its bytes."""

    __slots__ = ("_after_place", "_after_sequence", "_after_step")

    def __init__(self, record: Record) -> None:
        data = record.to_json()
        before = f"{_STEP}{record.id.step}"
        id_ = encoded(data.pop("id"))[1 + len(before) :]
        data.pop("seq")
        data.pop("at", None)  # told with each line
        payload = data.pop("payload", None)
        self._after_step = f'{id_},"seq":'
        self._after_sequence = f',{encoded(data)[1:-1]},"at":["'
        self._after_place = '"]}' if payload is None else f'"],"payload":{encoded(payload)}}}'

    def text(self, step: int, sequence: int, at: Location) -> str:
        place = f'{at.segment}",{at.offset},{at.size_bytes},"{at.xxh3}'
        return (
            f'{{"id":"{_STEP}{step}{self._after_step}{sequence}{self._after_sequence}{place}'
            f"{self._after_place}"
        )
